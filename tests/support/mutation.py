"""Samples of what others may write, with something changed in them."""

from collections.abc import Sequence

from hypothesis import strategies as st

__all__ = ["mutated"]

_PIECES = (
    b"",
    b"[" * 40,
    b"{" * 40,
    b"]",
    b"}",
    b'"',
    b",",
    b"-",
    b"\xff",
    b"\\ud800",
    b"1e999",
    b"NaN",
    b"9" * 5000,
    b"null",
    b"true",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    bytes(8),
)


@st.composite
def mutated(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """One of the samples with up to three places replaced, cut out, or filled with what is odd."""
    changed = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(changed)))
        width = draw(st.sampled_from([0, 1, 2, 4, 8, 1 << 20]))
        piece = draw(st.sampled_from(_PIECES) | st.binary(max_size=8))
        changed[at : at + width] = piece
    return bytes(changed)
