"""The wire format of Protobuf: numbers, and fields that nobody wants.

https://protobuf.dev/programming-guides/encoding/
"""

from kshare.read.decode.kernels.native import Int, helper, load_i64, store_i64, unsigned

__all__ = [
    "BYTES",
    "FIXED32",
    "FIXED64",
    "GROUP",
    "VARINT",
    "passed_over",
]

VARINT = 0
FIXED64 = 1
BYTES = 2
GROUP = 3
_GROUP_END = 4
FIXED32 = 5

_GROUPS = 100  # Java's limit of messages in messages


@helper
def _behind(at: int, end: int, wire_type: int) -> Int:
    """The address behind a value that is no group; 0: there is none."""
    if wire_type == VARINT:
        _, at = unsigned(at, end)
        return at
    size = 0
    if wire_type == FIXED64:
        size = 8
    elif wire_type == FIXED32:
        size = 4
    elif wire_type == BYTES:
        size, at = unsigned(at, end)
    else:
        return 0
    if at == 0 or size < 0 or size > end - at:
        return 0
    return at + size


@helper
def passed_over(groups: int, at: int, end: int, wire_type: int, number: int) -> Int:
    """The address behind a field that nobody wants; 0: it is cut short, or nothing of Protobuf."""
    depth = 0
    while True:
        if wire_type == GROUP:
            if depth == _GROUPS:
                return 0
            store_i64(groups + 8 * depth, number)
            depth += 1
        elif wire_type == _GROUP_END:
            depth -= 1
            if depth < 0 or load_i64(groups + 8 * depth) != number:
                return 0
        else:
            at = _behind(at, end, wire_type)
        if at == 0 or depth == 0:
            return at
        tag, at = unsigned(at, end)
        if at == 0 or tag >> 3 <= 0:
            return 0
        wire_type = tag & 7
        number = tag >> 3
