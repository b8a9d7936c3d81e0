"""Protobuf: messages to rows, and rows to messages."""
