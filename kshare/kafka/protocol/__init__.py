"""Talking to brokers: connections, requests, error codes, retries."""
