"""Reads a consumer's partitions, as :mod:`kshare.group.core` decides, and measures its load."""
