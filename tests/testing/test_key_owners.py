"""The verdict over the histories of a group: what is legal passes, what is not is named."""

import pytest

from kshare.core.hashing import WHOLE, HashRange, key_hash, split
from tests.support.key_owners import Delivery, Events, OwnerChange, key_owner_faults

KEY = b"k"
HALVES = split(WHOLE, 2)
MINE = next(half for half in HALVES if key_hash(KEY, 0) in half)
OTHERS = next(half for half in HALVES if half != MINE)


def got(time: int, offset: int, key: bytes = KEY) -> Delivery:
    return Delivery(time, 0, offset, key)


def assigned(time: int, *hashes: HashRange, partition: int = 0) -> OwnerChange:
    return OwnerChange(time, True, {partition: hashes})


def revoked(time: int, *hashes: HashRange) -> OwnerChange:
    return OwnerChange(time, False, {0: hashes})


def plain(*lines: Delivery | OwnerChange) -> Events:
    """A process without callbacks."""
    return Events(lines, has_callbacks=False)


def member(
    *lines: Delivery | OwnerChange, resumed: tuple[int, ...] = (), closing: tuple[int, ...] = ()
) -> Events:
    return Events(lines, resumed, closing)


LEGAL = {
    "one process": {"a": plain(*(got(n, n) for n in range(9)))},
    "handed over": {
        "a": member(assigned(0), got(1, 0), got(2, 1), revoked(3, MINE)),
        "b": member(assigned(4, MINE), got(5, 2), got(6, 3)),
    },
    "what was not committed at a kill comes again": {
        "a": member(assigned(0), got(1, 0), got(2, 1), got(3, 2)),
        "b": member(assigned(4, MINE), got(5, 1), got(6, 2), got(7, 3)),
    },
    "all of it comes again, twice": {
        "a": plain(got(1, 0), got(2, 1)),
        "b": plain(got(3, 0), got(4, 1)),
        "c": plain(got(5, 0), got(6, 1), got(7, 2)),
    },
    "and back, with an assignment of its own": {
        "a": member(assigned(0), got(1, 0), revoked(2), assigned(6, MINE), got(7, 2)),
        "b": member(assigned(3), got(4, 1), revoked(5, MINE)),
    },
    "other hashes come and go meanwhile": {
        "a": member(assigned(0), got(1, 0), revoked(2, OTHERS), got(3, 1), assigned(4, OTHERS))
    },
    "two keys at two processes at the same time": {
        "a": plain(got(1, 0), got(3, 2), got(5, 4)),
        "b": plain(got(2, 1, b"l"), got(4, 3, b"l"), got(6, 5, b"l")),
    },
    "records without a key": {
        "a": plain(got(1, 0, b""), got(3, 0, b"")),
        "b": plain(got(2, 0, b""), got(4, 0, b"")),
    },
    "the record in hand of one that was stopped": {
        "a": member(assigned(0), got(1, 0), got(9, 1), revoked(10), resumed=(8,)),
        "b": member(assigned(3), got(4, 1), got(5, 2), got(11, 3)),
    },
    "the record in hand of one that was closed": {
        "a": member(assigned(0), got(1, 0), revoked(3), got(4, 1), closing=(2,)),
        "b": member(assigned(5), got(6, 1)),
    },
}

STOPPED = member(assigned(0), got(1, 0), got(9, 1), got(10, 2), resumed=(8,))
STOPPED_AND_LOST = member(assigned(0), got(1, 0), revoked(9), got(10, 1), resumed=(8,))
SUCCESSOR = member(assigned(3), got(4, 1), got(5, 2))

ILLEGAL = {
    "in turn": (
        {
            "a": plain(*(got(10 * n, n) for n in range(40))),
            "b": plain(*(got(10 * n + 5, n) for n in range(40))),
        },
        78,
    ),
    "in turn, with callbacks": (
        {
            "a": member(assigned(0), *(got(10 * n + 1, n) for n in range(40))),
            "b": member(assigned(0), *(got(10 * n + 6, n) for n in range(40))),
        },
        79,
    ),
    "goes on after another has begun, with later records": (
        {"a": plain(got(1, 0), got(3, 2)), "b": plain(got(2, 1))},
        1,
    ),
    "goes on with an assignment of before": (
        {
            "a": member(assigned(0), got(1, 0), revoked(2), assigned(3, MINE), got(5, 2)),
            "b": member(assigned(2), got(4, 1)),
        },
        1,
    ),
    "another had it since the assignment": (
        {"a": member(assigned(2), got(4, 1)), "b": member(assigned(0), got(3, 0))},
        1,
    ),
    "goes on with an assignment of other hashes": (
        {
            "a": member(assigned(0), got(1, 0), assigned(3, OTHERS), got(4, 2)),
            "b": member(assigned(1), got(2, 1)),
        },
        1,
    ),
    "a second record after a close": (
        {"a": member(assigned(0), revoked(3), got(4, 0), got(5, 1), closing=(2,))},
        1,
    ),
    "an assignment of another partition": ({"a": member(assigned(0, partition=1), got(1, 0))}, 1),
    "delivered after it was revoked": ({"a": member(assigned(0), revoked(1, MINE), got(2, 0))}, 1),
    "twice at one process": ({"a": plain(got(1, 0), got(2, 0))}, 1),
    "backwards at one process": ({"a": plain(got(1, 1), got(2, 0))}, 1),
    "backwards at the successor": (
        {"a": plain(got(1, 0), got(2, 1)), "b": plain(got(3, 1), got(4, 0))},
        1,
    ),
    "a second record after it was stopped": ({"a": STOPPED, "b": SUCCESSOR}, 1),
    "not the record in hand: it knew of the loss": ({"a": STOPPED_AND_LOST, "b": SUCCESSOR}, 1),
}


@pytest.mark.parametrize("history", LEGAL.values(), ids=LEGAL)
def test_legal_histories_pass(history: dict[str, Events]) -> None:
    assert key_owner_faults(history) == []


@pytest.mark.parametrize(("history", "count"), ILLEGAL.values(), ids=ILLEGAL)
def test_each_fault_is_named(history: dict[str, Events], count: int) -> None:
    assert len(key_owner_faults(history)) == count


def test_after_the_log_was_lost_a_holding_may_begin_again_once() -> None:
    lines = [got(1, 0), got(2, 1), got(4, 2), got(5, 1), got(6, 2)]
    assert len(key_owner_faults({"a": plain(*lines)})) == 1
    assert key_owner_faults({"a": plain(*lines)}, [3]) == []
    again = [*lines, got(8, 1)]
    assert len(key_owner_faults({"a": plain(*again)}, [3])) == 1
    assert key_owner_faults({"a": plain(*again)}, [3, 7]) == []
    before = [got(1, 0), got(2, 0)]
    assert len(key_owner_faults({"a": plain(*before)}, [0, 3])) == 1
    two = {"a": plain(got(1, 0), got(5, 2)), "b": plain(got(4, 1))}
    assert len(key_owner_faults(two, [3])) == 1  # a loss excuses no second owner


def test_a_fault_says_who_what_and_after_whom() -> None:
    history = {"a": plain(got(1, 0), got(3, 2)), "b": plain(got(2, 1))}
    assert key_owner_faults(history) == [
        "a has delivered offset 2 of partition 0, key b'k', after b had taken the key over"
    ]
