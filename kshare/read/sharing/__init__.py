"""Sharing what tasks on one host have fetched of a partition."""
