"""The steps that the kernel ``decode_avro`` takes through a record, and what can be wrong with it.

A table of STEP (:mod:`kshare.read.decode.layout`) is a program, compiled of a writer's and the
reader's schema: where values lie on the wire is the writer's matter, where they go the reader's.
Each step reads some bytes, or appends a value, or both, and says which one follows.
"""

from typing import Final

END: Final = 0  # of the record

# Numbers: a value is read, and appended to the node.
INT: Final = 1
LONG: Final = 2
MILLIS: Final = 3  # a long, which becomes microseconds
NANOS: Final = 4  # as well
INT_TO_FLOAT: Final = 5
INT_TO_DOUBLE: Final = 6
LONG_TO_FLOAT: Final = 7
LONG_TO_DOUBLE: Final = 8
LAST_VARINT: Final = LONG_TO_DOUBLE
FLOAT: Final = 9
DOUBLE: Final = 10
FLOAT_TO_DOUBLE: Final = 11
BOOLEAN: Final = 12
LAST_NUMBER: Final = BOOLEAN

# Bytes: the same.
STRING: Final = 13
BYTES: Final = 14
FIXED: Final = 15  # of ``one`` bytes
DECIMAL: Final = 16  # of ``one`` bytes, -1: as many as a length says; ``two``: the limit's place
ENUM: Final = 17  # ``one``: place of the symbols' places and sizes, ``two``: their number
LAST_BYTES: Final = ENUM

# Nothing is read.
NULL: Final = 18
STRUCT: Final = 19

# Nothing is appended.
SKIP_NUMBER: Final = 20
SKIP_FIXED: Final = 21  # ``one`` bytes
SKIP_BYTES: Final = 22
LAST_SKIP: Final = SKIP_BYTES

# What follows depends on what is read.
UNION: Final = 23  # ``one``: place of the branches' steps, ``two``: their number
LIST: Final = 24  # items begin; the next step is ITEM
ITEM: Final = 25  # one more item; ``one``: the step behind them all, ``two``: bytes an item takes
CALL: Final = 26  # to ``one``, until RETURN
RETURN: Final = 27
DEFAULT: Final = 28  # ``one``, ``two``: place and size of a default that is read, until RESUME
RESUME: Final = 29  # with the record
REFUSE: Final = 30  # the reader's schema has no such value
JUMP: Final = 31  # nothing but its next step; none is left in a table

NO_NODE: Final = -1
"""In place of the node of a list: its items are passed over, and it is appended nowhere."""

STACK: Final = 128
"""The depth to which lists, defaults and recursive types may lie in each other."""

# Faults.
CUT_SHORT: Final = 1
NUMBER: Final = 2
NEGATIVE: Final = 3
INT_RANGE: Final = 4
NO_BOOLEAN: Final = 5
NO_BRANCH: Final = 6
NO_SYMBOL: Final = 7
OTHER_SYMBOL: Final = 8
NO_TEXT: Final = 9
DIGITS: Final = 10
TIME: Final = 11
TOO_DEEP: Final = 12
TOO_MANY: Final = 13
REFUSED: Final = 14
OUTSIDE: Final = 15
