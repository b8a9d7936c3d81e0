"""Messages: there and back, byte for byte, and what is not one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE
from kshare.core.live import BOUNDS, NO_LATENCY, Latency
from kshare.core.slice_end import HOT_KEYS_MAX, KEY_BYTES_MAX, SAMPLE_MAX, HotKey, SliceEnd
from kshare.core.tasks import TicketId
from kshare.query.feedback.messages import (
    LIVE_RANGES_MAX,
    Done,
    Executor,
    Hello,
    Message,
    Reading,
    decode,
    encode,
    seal,
)

KEY = b"k" * 32
TASKS = st.builds(TicketId, st.text(max_size=20), st.integers(0, 2**62))
ENDS = st.builds(
    SliceEnd,
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.lists(st.integers(0, HASH_SPACE - 1), max_size=SAMPLE_MAX).map(lambda s: tuple(sorted(s))),
    held=st.booleans(),
    hot_keys=st.lists(
        st.builds(HotKey, st.binary(max_size=KEY_BYTES_MAX), st.floats(0, 1, exclude_min=True)),
        max_size=HOT_KEYS_MAX,
    ).map(tuple),
)
EXECUTORS = st.builds(Executor, st.text(min_size=1, max_size=300), st.integers(0, 1 << 15))
COUNTS = st.integers(0, 2**62)
LATENCIES = st.lists(COUNTS, min_size=len(BOUNDS) + 1, max_size=len(BOUNDS) + 1).map(
    lambda counts: Latency(tuple(counts))
)
READINGS = st.builds(
    lambda ticket, places, latency: Reading(
        ticket, tuple(at for at, _ in places), tuple(end for _, end in places), latency
    ),
    TASKS,
    st.lists(st.tuples(COUNTS, COUNTS), max_size=10),
    LATENCIES,
)
MESSAGES = st.builds(Hello, TASKS, st.none() | EXECUTORS) | st.builds(Done, TASKS, ENDS) | READINGS


@given(MESSAGES)
def test_there_and_back(message: Message) -> None:
    line = encode(KEY, message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(KEY, line[:-1]) == message


@given(MESSAGES, st.integers(0), st.integers(1, 255))
def test_a_byte_that_was_changed_is_noticed(message: Message, position: int, change: int) -> None:
    line = bytearray(encode(KEY, message)[:-1])
    line[position % len(line)] ^= change
    with pytest.raises(ValueError, match="not signed"):
        decode(KEY, bytes(line))


@given(MESSAGES)
def test_another_key_is_noticed(message: Message) -> None:
    with pytest.raises(ValueError, match="not signed"):
        decode(b"another", encode(KEY, message)[:-1])


@given(st.binary(max_size=300))
def test_other_bytes_are_no_message(data: bytes) -> None:
    with pytest.raises(ValueError, match="not signed"):
        decode(KEY, data)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (Hello(TicketId("b", 3)), b'{"batch":"b","kind":"hello","task":3}'),
        (
            Hello(TicketId("b", 3), Executor("1@h", 2)),
            b'{"batch":"b","executor":"1@h","kind":"hello","slots":2,"task":3}',
        ),
        (
            Done(TicketId("b", 0), SliceEnd(9, 2, (4, 5))),
            b'{"batch":"b","end":9,"held":false,"kind":"done","records":2,"sample":[4,5],"task":0}',
        ),
        (
            Done(TicketId("b", 0), SliceEnd(9, 2, (4, 5), hot_keys=(HotKey(b"k", 0.5),))),
            (
                b'{"batch":"b","end":9,"held":false,"keys":[["aw==",0.5]],"kind":"done",'
                b'"records":2,"sample":[4,5],"task":0}'
            ),
        ),
    ],
)
def test_the_bytes_of_a_message_do_not_change(message: Message, body: bytes) -> None:
    """Tasks of another version of kshare may read and write them."""
    line = encode(KEY, message)
    assert line[65:] == body + b"\n"
    assert line[64:65] == b" "


@pytest.mark.parametrize(
    "keys",
    [
        "k",
        [["aw==", 0.1]] * (HOT_KEYS_MAX + 1),
        [["aw==", 1]],
        [["aw==", 0.0]],
        [["aw==", 1.1]],
        [["aw==", float("nan")]],
        [["?", 0.5]],
        [["aw=="]],
        [{"aw==": 0.5}],
        [["A" * 4 * KEY_BYTES_MAX, 0.5]],
    ],
)
def test_keys_that_cannot_be_are_no_message(keys: object) -> None:
    fields = {"batch": "b", "task": 0, "kind": "done", "end": 9, "records": 2, "held": False}
    line = seal(KEY, fields | {"sample": [], "keys": keys})
    with pytest.raises(ValueError):  # noqa: PT011 - base64 has its own texts
        decode(KEY, line[:-1])


def test_so_many_ranges_fit_into_a_line() -> None:
    most = (2**63 - 2,) * LIVE_RANGES_MAX
    message = Reading(TicketId("b", 0), most, most, NO_LATENCY)
    assert decode(KEY, encode(KEY, message)[:-1]) == message
    for positions, ends in (((*most, 1), (*most, 1)), ((1,), ())):
        line = encode(KEY, Reading(TicketId("b", 0), positions, ends, NO_LATENCY))
        with pytest.raises(ValueError, match=r"not of the same ranges|too"):
            decode(KEY, line[:-1])


@pytest.mark.parametrize("value", [None, 1, [-1], [True], ["1"], [2**63]])
def test_positions_that_are_none_are_refused(value: object) -> None:
    fields = {"batch": "b", "task": 0, "kind": "reading", "positions": value, "ends": [1]}
    with pytest.raises(ValueError, match="'positions' is no list of numbers"):
        decode(KEY, seal(KEY, fields)[:-1])
