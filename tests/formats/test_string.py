"""Strings are what Python decodes, also where two rows share a character."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kshare.formats.decoder import Decoded
from kshare.formats.framing import bytes_of, unframed
from kshare.formats.payloads import Payloads
from kshare.formats.string import StringDecoder

PIECES = [
    b"",
    b"a",
    "é".encode(),
    b"\xc3",
    b"\xa9",
    b"\xff",
    "😀".encode(),
    b"\xf0\x9f",
    b"\x98\x80",
]
VALUES = st.lists(
    st.none() | st.lists(st.sampled_from(PIECES), max_size=3).map(b"".join), max_size=8
)


def decoded(values: list[bytes | None], first: int = 0) -> Decoded:
    column = pa.array(values, pa.binary())[first:]
    data, starts, ends = bytes_of(column)
    return StringDecoder().decode(Payloads(data, starts, ends, np.zeros(len(starts), np.int32)))


def expected(values: list[bytes | None]) -> tuple[list[str | None], list[int]]:
    texts: list[str | None] = []
    bad = []
    for row, value in enumerate(values):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            texts.append(None)
            bad.append(row)
    return texts, bad


@given(VALUES, st.integers(0, 3))
def test_strings_are_what_python_decodes(values: list[bytes | None], first: int) -> None:
    found = decoded(values, first)
    found.values.validate(full=True)
    assert found.values.type == StringDecoder().type == pa.string()
    texts, bad = expected(values[first:])
    assert found.values.to_pylist() == texts
    assert [fault.row for fault in found.faults] == bad


@given(VALUES)
def test_strings_behind_a_framing(values: list[bytes | None]) -> None:
    column = pa.array([value and b"\0\0\0\0\7" + value for value in values], pa.binary())
    framed = unframed(column, "confluent")
    writers = np.zeros(len(values), np.int32)
    found = StringDecoder().decode(Payloads(framed.data, framed.starts, framed.ends, writers))
    texts, bad = expected([value or None for value in values])
    assert found.values.to_pylist() == texts
    assert [fault.row for fault in found.faults] == bad


def test_a_fault_says_which_byte() -> None:
    (fault,) = decoded([b"good", b"ba\xffd"]).faults
    assert (fault.row, fault.field, fault.reason) == (1, "", "is not UTF-8: byte 2 is wrong")
