"""Spark's VARIANT as Arrow has it: a struct of two binaries, the second one with a mark."""

from typing import Final

import pyarrow as pa

__all__ = ["VARIANT"]

VARIANT: Final[pa.StructType] = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
"""The type that Spark's workers take for a VARIANT, and send as one.

The bytes are those of the Parquet Variant format, version 1.
"""
