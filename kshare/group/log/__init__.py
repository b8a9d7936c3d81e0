"""The records of a group: the individual commit log, and primary offsets beside it."""
