"""When a member of a group does what: heartbeats, the time limit of what it waits for, pauses."""

from dataclasses import dataclass
from typing import Final

from kshare.core.backoff import Backoff

__all__ = ["MemberSchedule"]

_SHORTEST_HEARTBEAT: Final = 0.1
_TROUBLE: Final = 10.0
_WARNING: Final = 30.0  # between two


@dataclass(slots=True)
class MemberSchedule:
    """When a member has done what, and when to do it next. All times are in seconds.

    Attributes:
        pauses: Between attempts, longer each time.
        heartbeat_interval: Time between heartbeats (``heartbeat.interval.ms``).
        join_timeout: After this time, JoinGroup or SyncGroup counts as not answered.
        asked_at: When JoinGroup or SyncGroup was sent last.
        synced_at: When SyncGroup was answered last.
        heartbeat_at: When the next heartbeat is due.
        retry_at: Before this time nothing is asked: something has failed.
        failing_since: Since when everything has failed; None if it has not.
        warned_at: When the last warning of that was written.
    """

    pauses: Backoff
    heartbeat_interval: float
    join_timeout: float
    asked_at: float = 0.0
    synced_at: float = 0.0
    heartbeat_at: float = 0.0
    retry_at: float = 0.0
    failing_since: float | None = None
    warned_at: float = float("-inf")

    def pause(self, now: float) -> None:
        """Something has failed: do nothing for a while, longer each time."""
        self.retry_at = now + self.pauses.pause()

    def answered(self) -> None:
        """The coordinator has answered."""
        self.pauses.reset()

    def works(self) -> None:
        """It is a member, as the coordinator says."""
        self.failing_since, self.warned_at = None, float("-inf")

    def is_worth_a_warning(self, now: float) -> bool:
        """Something has failed: whether nothing has worked for a while, and nobody was warned."""
        if self.failing_since is None:
            self.failing_since = now
        if now - self.failing_since < _TROUBLE or now - self.warned_at < _WARNING:
            return False
        self.warned_at = now
        return True

    def joined(self) -> None:
        """JoinGroup was answered: a heartbeat is due."""
        self.heartbeat_at = 0.0

    def synced(self, now: float, *, awaits_round: bool) -> None:
        """SyncGroup was answered; perhaps another round of the rebalance is to follow."""
        self.synced_at = now
        self.works()
        if awaits_round:
            self.heartbeat_at = now + _SHORTEST_HEARTBEAT

    def take_heartbeat(self, now: float, *, awaits_round: bool) -> bool:
        """True if a heartbeat is due; if so, when the next one is.

        They are close together while another round of a rebalance is to follow, as a heartbeat
        says that it has begun.
        """
        if now < self.heartbeat_at:
            return False
        interval = self.heartbeat_interval
        if awaits_round:
            interval = min(interval, max(_SHORTEST_HEARTBEAT, (now - self.synced_at) / 10))
        self.heartbeat_at = now + interval
        return True

    def waits_long(self, now: float) -> bool:
        """True if what was asked is not answered within the time of a heartbeat."""
        return now - self.asked_at >= self.heartbeat_interval

    def is_overdue(self, now: float) -> bool:
        """True if what was asked is not answered in time, and has to be asked again."""
        return now - self.asked_at >= self.join_timeout
