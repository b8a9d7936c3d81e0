"""Beats: who is taken for dead has stopped before."""

from hypothesis import given
from hypothesis import strategies as st

from kshare.group.core.right import Beats
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.records import Member, key_of

SECONDS = 4.0


def log_with(*members: Member) -> GroupLog:
    log = GroupLog("g")
    for position, member in enumerate(members):
        log.apply(position, key_of(member), member)
    return log


def beats_of(session: str = "a") -> Beats:
    made = Beats(session, SECONDS)
    made.is_on = True
    return made


def test_it_may_deliver_from_when_a_beat_that_was_read_back_was_sent() -> None:
    own = beats_of()
    assert own.seconds_to_deliver(0.0) < 0
    own.sent(1_000, 10.0)
    assert own.seconds_to_deliver(11.0) < 0
    own.read(log_with(Member("a", "h", 1_000)))
    assert own.seconds_to_deliver(11.0) == SECONDS - 1
    own.sent(2_000, 12.0)
    own.read(log_with(Member("a", "h", 1_000)))
    assert own.seconds_to_deliver(12.0) == SECONDS - 2
    own.read(log_with(Member("a", "h", 2_000)))
    assert own.seconds_to_deliver(12.0) == SECONDS


def test_late_beats_do_not_bring_it_back() -> None:
    own = beats_of()
    own.sent(1_000, 10.0)
    own.read(log_with(Member("a", "h", 1_000)))
    own.sent(2_000, 11.0)
    assert not own.take_lapse(13.9)
    assert own.take_lapse(14.1)
    own.read(log_with(Member("a", "h", 2_000)))  # of before: it counts no more
    assert own.seconds_to_deliver(14.1) < 0
    assert not own.take_lapse(14.2)  # it is asked once
    own.sent(3_000, 14.2)
    own.read(log_with(Member("a", "h", 3_000)))
    assert own.seconds_to_deliver(14.2) == SECONDS


def test_a_member_that_its_coordinator_watches_needs_no_beats() -> None:
    own = Beats("a", SECONDS)
    own.sent(1_000, 0.0)
    assert own.seconds_to_deliver(100.0) == float("inf")
    assert not own.take_lapse(100.0)


def test_silence_is_measured_by_when_the_log_was_asked() -> None:
    own, log = beats_of(), log_with(Member("b", "h", 1_000))

    def silent(log: GroupLog, now: float, read_at: float) -> frozenset[str]:
        return own.silent(log, {"b", "c"}, now=now, read_at=read_at)

    assert silent(log, 10.0, 9.9) == set()
    assert silent(log, 15.0, 13.9) == set()  # the answer says what was there at 13.9
    assert silent(log, 15.1, 14.5) == {"b", "c"}
    later = log_with(Member("b", "h", 2_000))
    assert silent(later, 15.2, 15.1) == {"c"}


@given(st.lists(st.tuples(st.floats(0.01, 3), st.floats(0, 2), st.floats(0, 2)), max_size=12))
def test_nobody_is_taken_for_dead_that_may_deliver(
    beats: list[tuple[float, float, float]],
) -> None:
    """Each beat: a pause before it, its way into the log, its way to those that read."""
    author, other = beats_of("b"), beats_of("a")
    now = 0.0
    other.silent(GroupLog("g"), {"b"}, now=now, read_at=now)
    for number, (pause, way, back) in enumerate(beats, 1):
        sent = now + pause
        author.sent(number, sent)
        read = sent + way + back  # both are answered when it is in the log
        log = log_with(Member("b", "h", number))
        if author.take_lapse(sent):
            return  # it goes on under another name
        seen = other.silent(log, {"b"}, now=read, read_at=sent + way)
        assert not seen
        if author.take_lapse(read):
            return
        author.read(log)
        late = other.silent(log, {"b"}, now=read + 100, read_at=read + SECONDS)
        assert not late or author.seconds_to_deliver(read + SECONDS) <= 0
        now = read


def wants_proof(own: Beats) -> bool:
    return own.wants_proof  # mypy takes a property for what it was


def test_after_a_lapse_only_a_later_beat_proves_the_log() -> None:
    own = Beats("a", SECONDS)
    own.sent(1_000, 10.0)
    own.read(log_with(Member("a", "h", 1_000)))
    assert own.is_proven(float("-inf"))
    assert not wants_proof(own)
    own.sent(2_000, 11.0)  # is there when a broker freezes
    own.lapsed(20.0)
    assert wants_proof(own)
    own.read(log_with(Member("a", "h", 2_000)))
    assert not own.is_proven(float("-inf"))
    own.sent(3_000, 20.5)
    assert not wants_proof(own)
    own.not_taken(3_000)
    assert wants_proof(own)
    own.sent(4_000, 21.0)
    own.read(log_with(Member("a", "h", 4_000)))
    assert own.is_proven(float("-inf"))
    assert not own.is_proven(21.1)  # another lapse, which it was not told of
    assert own.is_proven(20.9)


def test_of_two_beats_that_look_the_same_the_first_counts() -> None:
    own = Beats("a", SECONDS)
    own.sent(1_000, 10.0)
    own.lapsed(10.4)
    own.sent(1_000, 10.5)
    own.read(log_with(Member("a", "h", 1_000)))
    assert not own.is_proven(float("-inf"))


def test_without_the_right_to_write_nothing_can_be_proven() -> None:
    own = Beats("a", SECONDS)
    own.lapsed(20.0)
    own.excuse()
    own.lapsed(30.0)
    assert own.is_proven(40.0)  # a lapse of its coordinator's
    assert not wants_proof(own)
