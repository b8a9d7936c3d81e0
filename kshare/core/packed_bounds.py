"""Sets of offsets as few bytes: the differences between their bounds, as LEB128.

``unpack(pack(bounds, base), base) == bounds``, and one set has one text. Checkpoints and the
individual commits of consumer groups are written so. A gap costs 2 bytes while it and what follows
it are shorter than 128 offsets; both directions then run at the speed of C.
"""

from itertools import accumulate
from operator import sub
from typing import Final

from kshare.core.offsets import Bounds

__all__ = ["OFFSET_MAX", "pack", "unpack"]

OFFSET_MAX: Final = 2**63 - 1
"""The highest offset that Kafka can express."""

_VARINT_MAX: Final = 9  # bytes: 63 bits


def pack(bounds: Bounds, base: int) -> bytes:
    """Write a set of offsets.

    Args:
        bounds: The set; no offset is below ``base``.
        base: What the first bound is written as the difference to.
    """
    steps = list(map(sub, bounds, (base, *bounds)))
    if not steps or max(steps) < 128:  # the common case, at the speed of C
        return bytes(steps)
    packed = bytearray()
    for step in steps:
        while step > 127:
            packed.append(step & 127 | 128)
            step >>= 7  # noqa: PLW2901
        packed.append(step)
    return bytes(packed)


def unpack(packed: bytes, base: int) -> Bounds:
    """Read what :func:`pack` has written.

    Args:
        packed: The bytes; at least one range.
        base: As it was given to :func:`pack`.

    Raises:
        ValueError: No set is written so; the text says what was wanted and what was found.
    """
    # Bytes below 128 are differences as they are: then all of it runs at the speed of C.
    steps = packed if packed.isascii() else _varints(packed)
    if not steps or len(steps) % 2:
        raise ValueError(f"wanted starts and ends in pairs, found {len(steps)}")
    if 0 in steps[1:]:
        raise ValueError("wanted ascending offsets, found 'two that are equal'")
    bounds = tuple(accumulate(steps, initial=base))[1:]
    if bounds[-1] > OFFSET_MAX:
        raise ValueError(f"wanted offsets up to {OFFSET_MAX}, found {bounds[-1]}")
    return bounds


def _varints(packed: bytes) -> list[int]:
    """LEB128: 7 bits a byte, the lowest first; the highest bit says that there is more."""
    steps = []
    value = shift = 0
    for byte in packed:
        if byte > 127:
            value |= (byte & 127) << shift
            shift += 7
            if shift >= 7 * _VARINT_MAX:
                raise ValueError(
                    f"wanted numbers of at most {_VARINT_MAX} bytes, found 'a longer one'"
                )
        elif shift:
            if not byte:
                wanted = "numbers in as few bytes as they need"
                raise ValueError(f"wanted {wanted}, found 'one with a zero at its end'")
            steps.append(value | byte << shift)
            value = shift = 0
        else:
            steps.append(byte)
    if shift:
        raise ValueError("wanted whole numbers, found 'one that is cut off'")
    return steps
