"""The content of a Protobuf message's tables; see MESSAGE and MESSAGE_FIELD in the layout."""

from typing import Final

# How a field's value is written, and what becomes of it.
INT32: Final = 0
INT64: Final = 1
ZIGZAG32: Final = 2
ZIGZAG64: Final = 3
BOOL: Final = 4
ENUM: Final = 5  # to its name
FIXED32: Final = 6  # as it is
FIXED64: Final = 7
STRING: Final = 8
BYTES: Final = 9
MESSAGE: Final = 10
MOMENT: Final = 11  # seconds and nanoseconds, to microseconds

# What else a field is.
REPEATED: Final = 1
IMPLICIT: Final = 2  # the default value is none
REQUIRED: Final = 4
DEFAULT: Final = 8  # the table has the value that stands for none
ZERO: Final = 16  # zero stands for none: of an entry of a map
CLOSED: Final = 32  # numbers that its enum does not have are no values

# Why a row is bad.
CUT: Final = 1
TAG: Final = 2
WIRE_TYPE: Final = 3
TEXT: Final = 4
ENUM_VALUE: Final = 5
RANGE: Final = 6
MISSING: Final = 7
SIZE: Final = 8
REPEATED_FIELD: Final = 9  # not bad: the parts of one field are to be put together first
