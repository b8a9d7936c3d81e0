"""The kinds of nodes of an output; see NODE in :mod:`kshare.read.decode.layout`."""

from typing import Final

NULL: Final = 0  # nothing but nulls
STRUCT: Final = 1
LIST: Final = 2  # also a map: a list of its entries
FIXED: Final = 3  # 1, 2, 4, 8 or 16 bytes
BOOLEAN: Final = 4  # a bit
BINARY: Final = 5  # also a string
