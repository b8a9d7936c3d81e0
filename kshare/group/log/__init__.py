"""What a group has written: the individual commit log, and primary offsets beside it."""
