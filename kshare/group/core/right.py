"""The right of a member to deliver, and until when: by the log, its coordinator, and a proof.

::

    log read to its end, as asked at most `claim timeout` ago --+
    coordinator: heard of, and no rebalance for too long -------+--> all at once: it may deliver
    beats, where it lives by them ------------------------------+
    no lapse, or a beat sent since is read back (`Beats`) ------+

All times are of one clock, on which suspension counts. A request counts from when it was sent.
"""

from typing import Final

from kshare.group.core.beats import Beats
from kshare.group.protocol.liveness import Liveness

__all__ = ["Right"]

_UNPROVEN: Final = -1.0
"""Seconds to deliver until the log was proven to be the present one: none."""
_NEVER: Final = float("-inf")


class Right:
    """The right of one member to deliver.

    Args:
        session: Name of the member's session.
        seconds: Time after which others no longer wait for a member (``claim.timeout.ms``).
        by_beats: Whether a standalone member lives by its beats.

    Attributes:
        beats: Its own, and those of others.
        coordinator: What its group's coordinator counts; None for a standalone member.
        read_at: When the log was last asked for that was read to its end; -inf for never.
    """

    def __init__(self, session: str, seconds: float, *, by_beats: bool) -> None:
        self.beats = Beats(session, seconds)
        self.beats.is_on = by_beats
        self.coordinator: Liveness | None = None
        self.read_at = _NEVER
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

    def seconds_left(self, now: float) -> float:
        """For how long it may deliver; below 0: not now."""
        seconds = min(self.read_at + self._seconds - now, self.beats.seconds_left(now))
        if self.coordinator is not None:
            seconds = min(seconds, self.coordinator.seconds_left(now))
        # Asked last: an answer that renews the right says first that it had lapsed.
        return seconds if self.is_proven else min(seconds, _UNPROVEN)
