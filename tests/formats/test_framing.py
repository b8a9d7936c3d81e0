"""Framings: which bytes are the payload, which schema they name, and what is none."""

import uuid

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.formats.framing import Framed, unframed
from kshare.options.typed_rows import FRAMINGS, Framing


def head(framing: Framing, number: int) -> bytes:
    match framing:
        case "confluent":
            return b"\0" + number.to_bytes(4, "big")
        case "apicurio":
            return b"\0" + number.to_bytes(8, "big")
        case "glue":
            return b"\3\0" + uuid.UUID(int=number).bytes
        case "singleObject":
            return b"\xc3\1" + number.to_bytes(8, "little")
    return b""


def payloads(framed: Framed) -> list[bytes | None]:
    data = framed.data.tobytes()
    pairs = zip(framed.starts.tolist(), framed.ends.tolist(), strict=True)
    return [None if start < 0 else data[start:end] for start, end in pairs]


Row = tuple[int, bytes] | None
ROWS = st.lists(st.none() | st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=9)), max_size=9)


@given(st.sampled_from(FRAMINGS), ROWS, st.integers(0, 2))
def test_payloads_and_ids(framing: Framing, rows: list[Row], first: int) -> None:
    column = pa.array(
        [None if row is None else head(framing, row[0]) + row[1] for row in rows], pa.binary()
    )[first:]
    framed, rows = unframed(column, framing), rows[first:]
    assert payloads(framed) == [None if row is None else row[1] for row in rows]
    assert framed.faults == ()
    if framing in {"none", "glue"}:
        assert len(framed.ids) == 0
    else:
        there = [(k, row[0]) for k, row in enumerate(rows) if row is not None]
        assert [(k, int(framed.ids[k])) for k, _ in there] == there


@given(st.sampled_from(FRAMINGS), st.lists(st.none() | st.binary(max_size=20), max_size=9))
def test_any_bytes_are_a_payload_a_fault_or_nothing(
    framing: Framing, values: list[bytes | None]
) -> None:
    framed = unframed(pa.array(values, pa.binary()), framing)
    bad = {fault.row for fault in framed.faults}
    assert sorted(bad) == [fault.row for fault in framed.faults]
    size = len(head(framing, 0))
    for row, (value, payload) in enumerate(zip(values, payloads(framed), strict=True)):
        if value is None:
            assert payload is None
            assert row not in bad
        elif row in bad:
            assert payload is None
        else:
            assert payload == value[size:]


@pytest.mark.parametrize(
    ("framing", "value", "reason"),
    [
        ("confluent", b"", "has 0 bytes, where the framing confluent alone has 5"),
        ("confluent", b"\0\0", "has 2 bytes, where the framing confluent alone has 5"),
        ("confluent", b'{"a": 1}', "begins with 0x7b, where the framing confluent has 0x00"),
        ("apicurio", b"\0\0\0\0\7x", "has 6 bytes, where the framing apicurio alone has 9"),
        ("glue", b"\3\5" + bytes(20), "is compressed with zlib, which is not built"),
        ("glue", b"\3\1" + bytes(20), "begins with 0x0301, where the framing glue has 0x0300"),
        ("singleObject", b"\xc3", "has 1 byte, where the framing singleObject alone has 10"),
    ],
)
def test_faults(framing: Framing, value: bytes, reason: str) -> None:
    (fault,) = unframed(pa.array([None, value], pa.binary()), framing).faults
    assert (fault.row, fault.field, fault.reason) == (1, "", reason)


def test_a_column_that_is_empty_or_has_no_bytes() -> None:
    for values in ([], [None, None], [b""]):
        column = pa.array(values, pa.binary())
        assert payloads(unframed(column, "none")) == values
