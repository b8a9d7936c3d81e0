"""Texts of JSON, made of columns of strings."""

from typing import Final

import pyarrow as pa
from pyarrow import compute

from kshare.formats.encode.parts import joined

__all__ = ["quoted"]

_ESCAPED: Final = r'["\\\x00-\x1f]'
_ESCAPES: Final = {
    "\\": "\\\\",
    '"': '\\"',
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    **{chr(code): f"\\u{code:04X}" for code in range(0x20) if chr(code) not in "\b\t\n\f\r"},
}


def quoted(texts: pa.Array) -> pa.Array:
    """Texts in quotes as bytes, with escapes as Jackson writes them."""
    if compute.any(compute.match_substring_regex(texts, _ESCAPED)).as_py():
        for character, escape in _ESCAPES.items():
            texts = compute.replace_substring(texts, character, escape)
    return joined(b'"', texts.cast(pa.binary()), b'"')
