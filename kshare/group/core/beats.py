"""Beats: signs of life that members write into the log, where no coordinator drops the dead.

::

    beat sent -----> read back by its author: it may deliver for `seconds` from when it was sent
        |
        +----------> read by another: silent, if the log, asked `seconds` later, has no other beat

So a member that is taken for dead has stopped before. Once it was late, it has to go on under
another name: the beat that comes late says nothing of what others have decided meanwhile.

For any member, a beat that is read back also proves that the log is the present one. A broker that
was frozen takes itself for leader and coordinator until it hears otherwise: it answers heartbeats,
and shows the log as it was. But it replicates nothing any more, and what is not replicated nobody
reads. So a member whose right to deliver has lapsed delivers again once it has read back a beat
that it has sent since::

    no answer in time: lapsed --> an answer --> a beat sent --> read back: proven
"""

from collections.abc import Iterable

from kshare.group.protocol.log import GroupLog
from kshare.group.protocol.records import Member

__all__ = ["Beats"]

_BEATS = 4
"""Beats in the time after which a member is silent."""


class Beats:
    """The beats of one member, and of those that it sees.

    Args:
        session: Name of the member's session.
        seconds: Time without a beat after which a member is silent.

    Attributes:
        is_on: Whether the member lives by its beats, not by its group's coordinator.
    """

    def __init__(self, session: str, seconds: float) -> None:
        self.is_on = False
        self._session = session
        self._seconds = seconds
        self._sent: dict[int, float] = {}  # when each beat was sent
        self._read_back = float("-inf")  # when the last beat that was read back was sent
        self._lapsed_at = float("-inf")
        self._is_excused = False
        self._seen: dict[
            str, tuple[Member | None, float]
        ] = {}  # the last sign, and when it was read

    @property
    def pause(self) -> float:
        """Seconds between two beats."""
        return self._seconds / _BEATS

    def seconds_left(self, now: float) -> float:
        """For how long the member may deliver; below 0: not now."""
        return self._read_back + self._seconds - now if self.is_on else float("inf")

    def take_lapse(self, now: float) -> bool:
        """Return True once after the session has expired; reset the timer."""
        has_lapsed = self._read_back > float("-inf") and self.seconds_left(now) < 0
        if has_lapsed:
            self._read_back = float("-inf")
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

    def read(self, log: GroupLog) -> None:
        """The log was read."""
        own = log.members.get(self._session)
        if own is not None and own.seen_ms in self._sent:
            self._read_back = max(self._read_back, self._sent[own.seen_ms])
            self._sent = {ms: at for ms, at in self._sent.items() if at > self._read_back}

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
