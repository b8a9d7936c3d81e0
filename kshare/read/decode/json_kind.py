"""The kinds of steps through a record of JSON, and of its faults.

See JSON_STEP in :mod:`kshare.read.decode.layout`.
"""

from typing import Final

STRUCT: Final = 0
LIST: Final = 1
MAP: Final = 2
STRING: Final = 3
BINARY: Final = 4  # in base 64
BOOLEAN: Final = 5
INTEGER: Final = 6
FLOAT: Final = 7
DOUBLE: Final = 8
DECIMAL: Final = 9
DATE: Final = 10
TIMESTAMP: Final = 11
LOCAL_TIMESTAMP: Final = 12
PATTERN: Final = 13  # a date or timestamp of a pattern

HARD: Final = 1  # no fault yet: the plain reader has to look at the record
MALFORMED: Final = 2
CUT_SHORT: Final = 3
TOO_DEEP: Final = 4
NO_OBJECT: Final = 5
TYPE: Final = 6  # a field has a value of another type, or one that its type has no room for
TOO_LARGE: Final = 7
EMPTY: Final = 8

NO_SINGLE_QUOTES: Final = 1
NO_NON_NUMBERS: Final = 2
LENIENT: Final = 4  # what is malformed here may be allowed: it is hard
PARTIAL: Final = 8  # a bad record keeps the fields that are good
