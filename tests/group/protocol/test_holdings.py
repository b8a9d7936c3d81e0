"""What a member owns, and how it changes hands."""

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges, split
from kshare.core.progress import TopicPartition
from kshare.group.protocol.membership.holdings import Holdings, assigned_minus
from kshare.group.protocol.membership.subscription import Assigned, MemberAssignment, in_order

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOWER, UPPER = split(WHOLE, 2)

ASSIGNED = st.dictionaries(
    st.sampled_from([T0, T1]),
    st.sampled_from([ALL_HASHES, KeyRanges([LOWER]), KeyRanges([UPPER])]),
    max_size=2,
)


def received(assigned: Assigned) -> MemberAssignment:
    return MemberAssignment(in_order(assigned), epoch=7, topic_id="log")


def hashes_of(assigned: Assigned) -> dict[TopicPartition, KeyRanges]:
    """With all hashes in place of an empty tuple."""
    return {partition: hashes or ALL_HASHES for partition, hashes in assigned.items()}


@given(ASSIGNED, ASSIGNED)
def test_what_is_received_is_owned_once_it_was_taken_and_applied(
    owned: Assigned, assigned: Assigned
) -> None:
    waiting = Holdings(owned).receive(received(assigned))
    taken = waiting.take(gives_up=False)
    assert taken.owned == owned
    assert taken.received is None
    if hashes_of(owned) == hashes_of(assigned):
        assert waiting.received is None
        assert taken.change is None
        return
    change = taken.change
    assert change is not None
    assert (change.epoch, change.topic_id) == (7, "log")
    assert change.revoked == assigned_minus(owned, assigned)
    assert change.gained == assigned_minus(assigned, owned)
    assert taken.take(gives_up=True) == taken  # one change at a time
    assert taken.applied() == Holdings(assigned)


@given(ASSIGNED, ASSIGNED)
def test_what_is_named_has_all_that_may_be_claimed(owned: Assigned, assigned: Assigned) -> None:
    taken = Holdings(owned).receive(received(assigned)).take(gives_up=False)
    assert assigned_minus(owned, taken.named) == {}
    assert taken.change is None or assigned_minus(taken.change.assigned, taken.named) == {}
    assert all(taken.may_commit(partition) for partition in owned)


@given(ASSIGNED, ASSIGNED, st.booleans())
def test_what_is_lost_is_one_change(owned: Assigned, assigned: Assigned, is_taken: bool) -> None:
    holdings = Holdings(owned).receive(received(assigned))
    if is_taken:
        holdings = holdings.take(gives_up=False)
    lost = holdings.lose()
    assert lost.received is None
    assert lost.is_lost == (bool(owned) or holdings.change is not None)
    if lost.change is not None:  # what was taken is applied first, and then lost
        lost = lost.applied()
    if lost.is_lost:
        change = lost.take(gives_up=False).change
        assert change is not None
        assert change.is_lost
        assert (change.revoked, change.assigned) == (lost.owned, {})
        assert lost.take(gives_up=False).applied() == Holdings()


def test_what_is_lost_is_not_named_but_what_is_owned() -> None:
    lost = Holdings({T0: KeyRanges([LOWER])}).lose().take(gives_up=False)
    assert lost.named == {T0: (LOWER,)}


def test_differences() -> None:
    assert assigned_minus({T0: ALL_HASHES, T1: ALL_HASHES}, {T0: KeyRanges([LOWER])}) == {
        T0: KeyRanges([UPPER]),
        T1: ALL_HASHES,
    }
    assert assigned_minus({T0: KeyRanges([LOWER])}, {T0: ALL_HASHES}) == {}
