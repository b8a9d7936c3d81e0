"""Until when a member of a group may hand out records."""

from dataclasses import dataclass

__all__ = ["Liveness"]


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
    polled_at: float = float("-inf")
    lapsed_at: float = float("-inf")
    _heard_at: float = float("-inf")
    _stable_at: float = float("-inf")

    def heard(self, sent_at: float, *, is_stable: bool) -> None:
        """A request was answered.

        Args:
            sent_at: When it was sent.
            is_stable: Whether no rebalance was under way then in which the member was missing.
        """
        if self._heard_at > float("-inf") and self.seconds_left(sent_at) < 0:
            self.lapsed_at = max(self.lapsed_at, sent_at)
        self._heard_at = max(self._heard_at, sent_at)
        if is_stable:
            self._stable_at = max(self._stable_at, sent_at)

    def lost(self) -> None:
        """The member counts no longer."""
        self._heard_at = self._stable_at = float("-inf")

    def seconds_left(self, now: float) -> float:
        """For how long it may hand out records; below 0: not now."""
        heard_until = self._heard_at + self.session_seconds
        stable_until = self._stable_at + self.rebalance_seconds
        return min(heard_until, stable_until) - now
