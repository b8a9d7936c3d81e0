"""Rows to bytes: JSON, Avro, Protobuf, a column at once."""
