"""Taking over from former owners: who they are, and who of them may still deliver."""

from dataclasses import replace

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges, split
from kshare.core.progress import TopicPartition
from kshare.group.protocol.commit_log.log import GroupLog, PartitionLog
from kshare.group.protocol.commit_log.records import Claim, key_of
from kshare.group.protocol.owners.cooperator import Cooperator
from kshare.group.protocol.owners.takeover import (
    former_ids,
    is_alone,
    is_of_the_past,
    session_of,
    taken_by_others,
)

T0 = TopicPartition("orders", 0)
LOWER, UPPER = split(WHOLE, 2)
MINE = Claim(T0, "me#2", KeyRanges([LOWER]))


def log_of(*claims: Claim) -> PartitionLog:
    log = GroupLog("g")
    for position, claim in enumerate(claims, 10):
        log.apply(position, key_of(claim), claim)
    return log.of(T0)


def test_a_session_is_named_before_the_last_mark() -> None:
    assert session_of("me#2") == "me"
    assert session_of("a#b#3") == "a#b"
    assert session_of("of old") == "of old"


def test_who_has_not_read_its_claim_back_is_not_alone() -> None:
    assert not is_alone(log_of(), MINE, None)
    assert is_alone(log_of(MINE), MINE, None)


def test_an_earlier_claim_on_the_same_hashes_is_waited_for() -> None:
    other = Claim(T0, "other#1", ALL_HASHES)
    assert not is_alone(log_of(other, MINE), MINE, None)
    assert is_alone(log_of(MINE, other), MINE, None)  # it is later: this one is fenced
    assert is_alone(log_of(replace(other, hashes=KeyRanges([UPPER])), MINE), MINE, None)


@pytest.mark.parametrize(
    ("changes", "peers", "is_past"),
    [
        ({}, frozenset({"me"}), True),
        ({}, frozenset({"me", "other"}), False),  # it is a member
        ({}, None, False),  # nobody knows whether it is
        ({"epoch": 5}, frozenset({"me"}), False),  # of the same epoch
        ({"epoch": None}, frozenset({"me"}), False),  # standalone
        ({"self_fencing": False}, frozenset({"me"}), False),  # static: it promises nothing
    ],
)
def test_a_member_that_was_dropped_is_of_the_past(
    changes: dict[str, object], peers: frozenset[str] | None, is_past: bool
) -> None:
    values = {"epoch": 3, "self_fencing": True, **changes}
    mine, other = replace(MINE, epoch=5), replace(MINE, name="other#1", **values)  # type: ignore[arg-type]
    assert is_of_the_past(other, mine, peers) is is_past
    if other.epoch is not None:  # else its own offset is its age, and it is the later one
        assert is_alone(log_of(other, mine), mine, peers) == is_past


def test_the_ids_of_other_sessions_are_fenced() -> None:
    def other(name: str, **values: object) -> Claim:
        return replace(MINE, name=name, transactional_id=f"t-{name}", **values)  # type: ignore[arg-type]

    before, after = other("other#1"), other("later#1")
    own, elsewhere = other("me#1"), other("third#1", hashes=KeyRanges([UPPER]))
    plain = replace(MINE, name="plain#1")
    assert former_ids(log_of(before, own, elsewhere, plain, MINE, after), MINE) == {"t-other#1"}
    # Before the own claim is read back, nobody knows who was first.
    assert former_ids(log_of(before, own, elsewhere, after), MINE) == {"t-other#1", "t-later#1"}


def test_chunks_are_shared_by_claims_that_exclude_nobody() -> None:
    Cooperator(replace(MINE, shared=True))
    with pytest.raises(ValueError, match="is not shared"):
        Cooperator(MINE)


def test_what_other_sessions_claim_is_taken_whichever_came_first() -> None:
    upper = Claim(T0, "other#1", KeyRanges([UPPER]))
    whole = Claim(T0, "third#1", ALL_HASHES)
    of_before = Claim(T0, "me#1", ALL_HASHES)
    assert taken_by_others(log_of(of_before, MINE, upper), MINE) == ()
    assert taken_by_others(log_of(of_before, MINE, whole), MINE) == (LOWER,)
    assert taken_by_others(log_of(whole), replace(MINE, hashes=KeyRanges([UPPER]))) == KeyRanges(
        [UPPER]
    )
    shared = replace(whole, shared=True)
    assert taken_by_others(log_of(shared), MINE) == (LOWER,)
    assert taken_by_others(log_of(shared), replace(MINE, shared=True)) == ()
