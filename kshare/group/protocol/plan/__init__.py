"""The plan of a group: which member gets which hashes."""
