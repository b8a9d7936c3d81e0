"""The right of a member to deliver, and until when: by the log, its coordinator, and a proof.

::

    log read to its end, as asked at most `claim timeout` ago --+
    coordinator: heard of, and no rebalance for too long -------+--> all at once: it may deliver
    beats, where it lives by them ------------------------------+
    no lapse, or a beat sent since is read back (`Beats`) ------+

All times are of one clock, on which suspension counts. A request counts from when it was sent.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.records import Member

__all__ = ["Beats", "Liveness", "Right"]

_BEATS: Final = 4
"""Beats in the time after which a member is silent."""
_UNPROVEN: Final = -1.0
"""Seconds to deliver until the log was proven to be the present one: none."""
_NEVER: Final = float("-inf")


@dataclass(slots=True)
class Liveness:
    """The time until which the coordinator cannot have dropped this member.

    A member is dropped when it has not been heard of for its session timeout, or has not joined
    within the rebalance timeout after a rebalance began. All times are those at which requests were
    sent that were answered later: the coordinator counts from when it has received them.

    Attributes:
        session_seconds: The session timeout.
        rebalance_seconds: The rebalance timeout (``max.poll.interval.ms``).
        polled_at: When somebody has polled last.
        lapsed_at: When the answer was asked for that has renewed the right after it had lapsed;
            -inf if it never had. Such an answer alone does not do: a coordinator that was frozen
            gives it too, while another one has dropped the member.
    """

    session_seconds: float
    rebalance_seconds: float
    polled_at: float = _NEVER
    lapsed_at: float = _NEVER
    _heard_at: float = _NEVER
    _joined_at: float = _NEVER

    def heard(self, sent_at: float, *, is_joined: bool) -> None:
        """A request was answered.

        Args:
            sent_at: When it was sent.
            is_joined: Whether no rebalance was under way then in which the member was missing.
        """
        if self._heard_at > _NEVER and self.seconds_to_deliver(sent_at) < 0:
            self.lapsed_at = max(self.lapsed_at, sent_at)
        self._heard_at = max(self._heard_at, sent_at)
        if is_joined:
            self._joined_at = max(self._joined_at, sent_at)

    def lost(self) -> None:
        """The member counts no longer."""
        self._heard_at = self._joined_at = _NEVER

    def seconds_to_deliver(self, now: float) -> float:
        """For how long it may hand out records; below 0: not now."""
        heard_until = self._heard_at + self.session_seconds
        joined_until = self._joined_at + self.rebalance_seconds
        return min(heard_until, joined_until) - now


class Beats:
    """Beats: signs of life that members write into the log, where no coordinator drops the dead.

    ::

        beat sent ---> read back by its author: it may deliver for `seconds` from when it was sent
            |
            +--------> read by another: silent, if the log, asked `seconds` later, has no other one

    So a member that is taken for dead has stopped before. Once it was late, it has to go on under
    another name: the beat that comes late says nothing of what others have decided meanwhile.

    For any member, a beat that is read back also proves that the log is the present one. A broker
    that was frozen takes itself for leader and coordinator until it hears otherwise: it answers
    heartbeats, and shows the log as it was. But it replicates nothing any more, and what is not
    replicated nobody reads. So a member whose right to deliver has lapsed delivers again once it
    has read back a beat that it has sent since::

        no answer in time: lapsed --> an answer --> a beat sent --> read back: proven

    Args:
        session: Id of the member's session.
        seconds: Time without a beat after which a member is silent.

    Attributes:
        is_on: Whether the member lives by its beats, not by its group's coordinator.
    """

    def __init__(self, session: str, seconds: float) -> None:
        self.is_on = False
        self._session = session
        self._seconds = seconds
        self._sent: dict[int, float] = {}  # when each beat was sent
        self._read_back = _NEVER  # when the last beat that was read back was sent
        self._lapsed_at = _NEVER
        self._is_excused = False
        self._seen: dict[
            str, tuple[Member | None, float]
        ] = {}  # the last sign, and when it was read

    @property
    def pause(self) -> float:
        """Seconds between two beats."""
        return self._seconds / _BEATS

    def seconds_to_deliver(self, now: float) -> float:
        """For how long the member may deliver; below 0: not now."""
        return self._read_back + self._seconds - now if self.is_on else float("inf")

    def take_lapse(self, now: float) -> bool:
        """Return True once after the session has expired; reset the timer."""
        has_lapsed = self._read_back > _NEVER and self.seconds_to_deliver(now) < 0
        if has_lapsed:
            self._read_back = _NEVER
            self._sent.clear()
        return has_lapsed

    def lapsed(self, at: float) -> None:
        """The right to deliver had lapsed when the answer was asked for that renews it."""
        self._lapsed_at = max(self._lapsed_at, at)

    def excuse(self) -> None:
        """Nothing may be written to the log: it cannot be proven to be the present one."""
        self._is_excused = True

    def is_proven(self, lapsed_at: float) -> bool:
        """True if the log is the present one, as far as that is in doubt.

        Args:
            lapsed_at: Time of a lapse that has not been reported through :meth:`lapsed` yet.
        """
        return self._is_excused or self._read_back >= max(self._lapsed_at, lapsed_at)

    @property
    def wants_proof(self) -> bool:
        """True if a beat is to be sent at once."""
        is_asked = any(at >= self._lapsed_at for at in self._sent.values())
        return not self._is_excused and self._read_back < self._lapsed_at and not is_asked

    def sent(self, seen_ms: int, now: float) -> None:
        """A beat was sent."""
        self._sent.setdefault(seen_ms, now)  # two of a millisecond look the same: the first counts

    def not_taken(self, seen_ms: int) -> None:
        """A beat was not written."""
        self._sent.pop(seen_ms, None)

    def read(self, log: GroupLog) -> bool:
        """The log was read; whether a beat of this member came back that had not before."""
        own = log.members.get(self._session)
        if own is None or own.seen_ms not in self._sent:
            return False
        self._read_back = max(self._read_back, self._sent[own.seen_ms])
        self._sent = {ms: at for ms, at in self._sent.items() if at > self._read_back}
        return True

    def silent(
        self, log: GroupLog, sessions: Iterable[str], *, now: float, read_at: float
    ) -> frozenset[str]:
        """The sessions that are silent.

        Args:
            log: The log, read to its end.
            sessions: The sessions that are to be judged.
            now: The time.
            read_at: When the log was asked for.
        """
        seen: dict[str, tuple[Member | None, float]] = {}
        for session in sessions:
            sign = log.members.get(session)
            before = self._seen.get(session)
            is_new = before is None or before[0] != sign
            seen[session] = (sign, now) if before is None or is_new else before
        self._seen = seen
        return frozenset(
            session for session, (_, since) in seen.items() if read_at - since > self._seconds
        )


class Right:
    """The right of one member to deliver.

    Args:
        session: Id of the member's session.
        seconds: Time after which others no longer wait for a member (``claim.timeout.ms``).
        by_beats: Whether a standalone member lives by its beats.
        keeps_log: Whether the group has a log. Without one, its coordinator alone says whether the
            member may deliver, as with plain consumers; and nobody does if it has joined none.

    Attributes:
        beats: Its own, and those of others.
        coordinator: What its group's coordinator counts; None for a standalone member.
        read_at: When the log was last asked for that was read to its end; -inf for never, inf
            without a log.
    """

    def __init__(
        self, session: str, seconds: float, *, by_beats: bool, keeps_log: bool = True
    ) -> None:
        self.beats = Beats(session, seconds)
        self.beats.is_on = by_beats
        self.coordinator: Liveness | None = None
        self.read_at = _NEVER if keeps_log else float("inf")
        if not keeps_log:
            self.beats.excuse()
        self._seconds = seconds
        self._by_beats = by_beats

    # -- events ------------------------------------------------------------------------------

    def joined(self, coordinator: Liveness, *, is_static: bool) -> None:
        """It becomes a member of a group.

        Args:
            coordinator: What the coordinator counts.
            is_static: Whether it has a ``group.instance.id``: then beats count, too, as the
                coordinator drops it at once when it is replaced.
        """
        self.coordinator = coordinator
        self.beats.is_on = self._by_beats and is_static

    def left(self) -> None:
        """It is a standalone member again."""
        self.coordinator = None
        self.beats.is_on = self._by_beats

    def log_read(self, sent_at: float) -> None:
        """The log was read to its end, by a request that was sent at a time."""
        if _NEVER < self.read_at < sent_at - self._seconds:
            self.beats.lapsed(sent_at)
        self.read_at = max(self.read_at, sent_at)

    def has_missed(self, sent_at: float, *, has_holes: bool) -> bool:
        """True if claims may have come and gone that this member has not seen. Before `log_read`.

        Who takes over waits for as long as a member may go without the log. So what has come and
        gone within that time was never acted upon. What has come and gone later is seen, as long as
        all records are there: a claim that was given up is one that compaction deletes, and later
        it deletes the tombstone, too.

        Args:
            sent_at: When the log was asked for that is read to its end now.
            has_holes: Whether records are missing since it was read to its end before.
        """
        return has_holes and _NEVER < self.read_at < sent_at - self._seconds

    def ended(self) -> None:
        """The session cannot go on."""
        self.read_at = _NEVER

    # -- what holds --------------------------------------------------------------------------

    @property
    def is_proven(self) -> bool:
        """True if the log is the present one, as far as that is in doubt."""
        return self.beats.is_proven(self.lapsed_at)

    @property
    def lapsed_at(self) -> float:
        """When the coordinator was asked for the answer that ended a lapse; -inf for never."""
        return _NEVER if self.coordinator is None else self.coordinator.lapsed_at

    def reads_late(self, now: float) -> bool:
        """Return True if the log has not been read for so long that it may not deliver."""
        return now - self.read_at > self._seconds

    def seconds_to_deliver(self, now: float) -> float:
        """For how long it may deliver; below 0: not now."""
        seconds = min(self.read_at + self._seconds - now, self.beats.seconds_to_deliver(now))
        if self.coordinator is not None:
            seconds = min(seconds, self.coordinator.seconds_to_deliver(now))
        # Asked last: an answer that renews the right says first that it had lapsed.
        return seconds if self.is_proven else min(seconds, _UNPROVEN)
