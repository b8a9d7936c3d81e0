"""JSON to typed rows, with the meaning of Spark's ``from_json``."""
