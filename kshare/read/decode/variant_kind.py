"""The kinds of values of a variant, and what a decoding of variants may lack.

The format: https://github.com/apache/parquet-format/blob/master/VariantEncoding.md, version 1.
"""

from typing import Final

# The lower two bits of a value's first byte.
PRIMITIVE: Final = 0
SHORT_STRING: Final = 1
OBJECT: Final = 2
ARRAY: Final = 3

# The upper six bits of a primitive's.
NULL: Final = 0
TRUE: Final = 1
FALSE: Final = 2
INT8: Final = 3
INT16: Final = 4
INT32: Final = 5
INT64: Final = 6
DOUBLE: Final = 7
DECIMAL4: Final = 8
DECIMAL8: Final = 9
DECIMAL16: Final = 10
# What JSON does not have: casts of Spark make these.
DATE: Final = 11
TIMESTAMP: Final = 12
TIMESTAMP_NTZ: Final = 13
FLOAT: Final = 14
BINARY: Final = 15
LONG_STRING: Final = 16

SHORT_STRING_MAX: Final = 63  # bytes
DECIMAL4_MAX: Final = 9  # digits, and the scale
DECIMAL8_MAX: Final = 18
DECIMAL16_MAX: Final = 38
SIZE_MAX: Final = 16 << 20  # bytes of a value, and of metadata, that every Spark reads
VERSION: Final = 1

LACKS_OUTPUT: Final = 0
LACKS_KEYS: Final = 1
LACKS_FIELDS: Final = 2
