"""Formats of values: from the bytes of records to typed rows."""
