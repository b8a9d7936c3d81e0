"""The judge of histories: what is right passes, each fault is named, seeded ones are found."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from integration.history import (
    Committed,
    Delivery,
    Events,
    History,
    Kind,
    OwnerChange,
    Sent,
    check_history,
)
from kshare.core.hashing import WHOLE, HashRange, key_hash, split
from kshare.core.progress import TopicPartition
from tests.support.histories import SEEDED, right_histories

KEY = b"k"
AT = TopicPartition("orders", 0)
HALVES = split(WHOLE, 2)
MINE = next(half for half in HALVES if key_hash(KEY, 0) in half)
OTHERS = next(half for half in HALVES if half != MINE)


def got(time: int, offset: int, key: bytes = KEY) -> Delivery:
    return Delivery(time, AT, offset, key)


def assigned(time: int, *hashes: HashRange, partition: int = 0) -> OwnerChange:
    return OwnerChange(time, True, {TopicPartition("orders", partition): hashes})


def revoked(time: int, *hashes: HashRange) -> OwnerChange:
    return OwnerChange(time, False, {AT: hashes})


def faults(processes: Mapping[str, Events], resets: Sequence[int] = ()) -> list[str]:
    return [str(each) for each in check_history(History(processes=processes, resets=resets))]


def plain(*lines: Delivery | OwnerChange) -> Events:
    """A process without callbacks."""
    return Events(lines, has_callbacks=False)


def member(
    *lines: Delivery | OwnerChange | Committed,
    resumed: tuple[int, ...] = (),
    closing: tuple[int, ...] = (),
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
        "a": plain(got(1, 0, b""), got(3, 1, b"")),
        "b": plain(got(2, 3, b""), got(4, 2, b"")),
    },
    "the record in hand of one that was stopped": {
        "a": member(assigned(0), got(1, 0), got(9, 1), revoked(10), resumed=(8,)),
        "b": member(assigned(3), got(4, 1), got(5, 2), got(11, 3)),
    },
    "others came and went while one was stopped": {
        "a": Events(
            [got(1, 0), got(2, 1), got(9, 2), got(10, 1), got(11, 3)], (8,), has_callbacks=False
        ),
        "b": plain(got(4, 0)),
    },
    "a member that was stopped begins anew": {
        "a": member(assigned(0), got(1, 0), got(2, 1), got(9, 2), got(10, 1), resumed=(8,)),
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
    "backwards at one process, after a skip": ({"a": plain(got(1, 1), got(2, 0))}, 2),
    "backwards at the successor": (
        {"a": plain(got(1, 0), got(2, 1)), "b": plain(got(3, 1), got(4, 0))},
        1,
    ),
    "goes on after it was stopped, and so does another": (
        {
            "a": Events([got(1, 0), got(9, 1), got(10, 2)], (8,), has_callbacks=False),
            "b": plain(got(4, 1), got(11, 3)),
        },
        1,
    ),
    "begins anew twice after it was stopped once": (
        {
            "a": member(
                *(assigned(0), got(1, 0), got(2, 1), got(9, 2), got(10, 1), got(11, 1)),
                resumed=(8,),
            )
        },
        1,
    ),
    "a second record after it was stopped": ({"a": STOPPED, "b": SUCCESSOR}, 1),
    "not the record in hand: it knew of the loss": ({"a": STOPPED_AND_LOST, "b": SUCCESSOR}, 1),
}


@pytest.mark.parametrize("history", LEGAL.values(), ids=LEGAL)
def test_legal_histories_pass(history: dict[str, Events]) -> None:
    assert faults(history) == []


@pytest.mark.parametrize(("history", "count"), ILLEGAL.values(), ids=ILLEGAL)
def test_each_fault_is_named(history: dict[str, Events], count: int) -> None:
    assert len(faults(history)) == count


def test_after_the_log_was_lost_a_holding_may_begin_again_once() -> None:
    lines = [got(1, 0), got(2, 1), got(4, 2), got(5, 1), got(6, 2)]
    assert len(faults({"a": plain(*lines)})) == 1
    assert faults({"a": plain(*lines)}, [3]) == []
    again = [*lines, got(8, 1)]
    assert len(faults({"a": plain(*again)}, [3])) == 1
    assert faults({"a": plain(*again)}, [3, 7]) == []
    before = [got(1, 0), got(2, 0)]
    assert len(faults({"a": plain(*before)}, [0, 3])) == 1
    two = {"a": plain(got(1, 0), got(5, 2)), "b": plain(got(4, 1))}
    assert len(faults(two, [3])) == 1  # a loss excuses no second owner


def test_a_fault_says_who_what_and_after_whom() -> None:
    history = {"a": plain(got(1, 0), got(3, 2)), "b": plain(got(2, 1))}
    (found,) = faults(history)
    what = "non-monotonic poll: a has received offset 2 of orders-0, key b'k', "
    assert found == what + "after b had taken the key over"


@given(right_histories())
def test_a_right_history_has_no_anomaly(history: History) -> None:
    assert check_history(history) == []


@pytest.mark.parametrize("kind", SEEDED)
@given(history=right_histories(), draw=st.data())
def test_a_seeded_fault_is_found(kind: Kind, history: History, draw: st.DataObject) -> None:
    broken = SEEDED[kind](history, draw)
    assume(broken is not history)  # it has no place for this fault
    assert kind in {each.kind for each in check_history(broken)}


def test_a_record_that_was_handed_over_does_not_come_again() -> None:
    """A rebalance is no excuse: there was time to commit. A loss, a kill and a close are."""
    b = member(assigned(5, MINE), got(6, 1))
    handed_over = (assigned(0), got(1, 1), revoked(2, MINE), assigned(3, OTHERS))
    assert faults({"a": member(*handed_over), "b": b}) == [
        "duplicate: b has received offset 1 of orders-0, key b'k', which a had, and handed over"
    ]
    lost = replace(revoked(2, MINE), is_lost=True)
    assert faults({"a": member(assigned(0), got(1, 1), lost, assigned(3, OTHERS)), "b": b}) == []
    assert faults({"a": member(assigned(0), got(1, 1), revoked(2, MINE)), "b": b}) == []
    other = next(key for key in map(bytes, range(9)) if key and key_hash(key, 0) in OTHERS)
    killed = (*handed_over[:-1], got(3, 2, other))
    others = member(assigned(0, *HALVES), *killed[1:])
    assert faults({"a": others, "b": b}) == []  # it read on while it committed, and was killed
    amid = (*handed_over[:-1], replace(revoked(4, OTHERS), is_lost=True))
    assert faults({"a": member(*amid, assigned(5, OTHERS)), "b": b}) == []  # the commit went on
    assert faults({"a": member(*handed_over, closing=(1,)), "b": b}) == []
    later = member(assigned(0), got(1, 1), revoked(3, MINE), assigned(4, OTHERS))
    for anew, expected in ((1, 1), (3, 1), (2, 0)):  # between the record and the end
        claimed = replace(later, anew=(anew,))
        assert len(faults({"a": claimed, "b": b})) == expected
    assert faults({"a": member(*handed_over), "b": b}, [2]) == []
    assert faults({"a": member(*handed_over), "b": replace(b, is_plain=True)}) == []


def test_what_was_committed_comes_again_after_a_reset_only() -> None:
    a = member(assigned(0), got(1, 3), Committed(2, AT, 4, is_below=True), Committed(2, AT, 9))
    b = member(assigned(5), got(6, 3), got(7, 4), got(8, 9))
    found = check_history(History(processes={"a": a, "b": b}))
    assert [each.text[:26] for each in found] == [
        "b has received offset 3 of",
        "b has received offset 9 of",
    ]
    assert {each.kind for each in found} == {"duplicate"}
    assert check_history(History(processes={"a": a, "b": b}, resets=[4])) == []
    assert check_history(History(processes={"a": a, "b": replace(b, is_plain=True)})) == []


def test_what_nobody_has_passed_is_not_lost_in_a_history_that_ends_early() -> None:
    sent = [Sent(AT, offset, KEY) for offset in range(4)] + [Sent(AT, 4, b"other")]
    a = {"a": plain(got(1, 1), got(2, 2))}
    early = check_history(History(processes=a, sent=sent, is_complete=False))
    assert [each.kind for each in early] == ["poll skip", "lost write"]
    assert "offset 0" in early[1].text
    assert len(check_history(History(processes=a, sent=sent))) == 1 + 3
    late = History(processes=a, sent=sent, starts={AT: 1}, is_complete=False)
    assert check_history(late) == []


def test_a_record_is_at_one_offset_and_an_offset_has_one_record() -> None:
    a = {"a": plain(replace(got(1, 0), name="x"), replace(got(2, 1), name="x"))}
    assert [each.text for each in check_history(History(processes=a))] == [
        "'x' is at orders-0 offset 0, orders-0 offset 1"
    ]
    sent = [Sent(AT, 0, KEY, name="x"), Sent(AT, 1, b"l", name="x"), Sent(AT, 2, KEY)]
    b = {"a": plain(replace(got(1, 0), name="y"), got(2, 1), got(3, 2), got(4, 7))}
    kinds = [each.kind for each in check_history(History(processes=b, sent=sent))]
    assert kinds == ["duplicate", *["inconsistent record"] * 3]


def test_records_without_offsets_are_known_by_name() -> None:
    """Of a write that timed out, or was aborted, a producer knows no offset."""
    sent = [
        Sent(AT, None, KEY, "aborted", name="x"),
        Sent(AT, None, KEY, "unknown", name="y"),
        Sent(AT, None, KEY, "written", name="z"),
    ]
    a = {"a": plain(replace(got(1, 0), name="x"))}
    found = check_history(History(processes=a, sent=sent))
    assert [each.kind for each in found] == ["aborted read", "lost write"]


def test_without_the_order_of_keys_what_is_committed_still_comes_once() -> None:
    a = member(assigned(0), got(1, 3), Committed(2, AT, 3), got(4, 1))
    b = member(assigned(0), got(5, 3), got(6, 2))
    history = History(processes={"a": a, "b": b}, has_order=False)
    assert [each.kind for each in check_history(history)] == ["duplicate"]


@pytest.mark.parametrize(
    ("committed", "received", "expected"),
    [(5, 6, ["duplicate"]), (12, 13, []), (12, 22, []), (12, 23, ["duplicate"])],
)
def test_what_is_committed_after_its_lease_may_be_in_anothers_hand(
    committed: int, received: int, expected: list[str]
) -> None:
    a = member(assigned(0), got(1, 3), Committed(committed, AT, 3))
    b = member(assigned(0), got(received, 3))
    history = History(processes={"a": a, "b": b}, has_order=False, lease_ns=10)
    assert [each.kind for each in check_history(history)] == expected
