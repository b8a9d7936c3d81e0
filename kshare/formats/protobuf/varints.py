"""Varints of Protobuf in plain Python, for what is not of each record."""

__all__ = ["read_varint", "varint"]

_MOST_BYTES = 10


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it.

    Raises:
        ValueError: It is cut short, or longer than 10 bytes.
    """
    value = 0
    for place in range(_MOST_BYTES):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ValueError("a number is cut short, or longer than 10 bytes")


def varint(value: int) -> bytes:
    """Return a number from 0 on as bytes."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
