"""Owners: one member's claim to a partition's hashes, from its first word to its last."""
