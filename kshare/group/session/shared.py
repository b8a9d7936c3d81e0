"""What a session's thread and its callers share."""

import threading
from dataclasses import dataclass, field
from typing import Final

from kshare.errors import KshareError
from kshare.group.core.ownerships import Ownerships
from kshare.group.membership.handle import MemberHandle

__all__ = ["Shared"]

_AGAIN_SECONDS: Final = 300.0
"""The time after which the same trouble is logged again."""


@dataclass(slots=True)
class Shared:
    """The state of a session, for its thread and its callers; ``changed`` guards it.

    But without the lock, the session's thread notes ``trouble``, ``troubles`` and ``notices`` and
    reads ``served`` and ``is_closing``; ``keeps_claims`` is set; and ``member``, ``fault``,
    ``own_fences`` and ``primary_by`` are looked at, one at a time.

    Attributes:
        ownerships: What the session owns.
        changed: Guards it, and tells who waits.
        member: Its membership; None while it is a standalone one.
        served: Those that have not ended: its membership, and former ones that are still leaving.
        fault: Why the session cannot go on; None if it can.
        trouble: What went wrong last.
        troubles: What went wrong lately, each with when it was logged last.
        notices: What is to be logged for information, once the lock is released.
        is_closing: Whether the session is to end.
        is_closed: Whether all claims have been given up.
        has_ended: Whether the thread has ended.
        close_by: By when, at the latest, as :func:`time.monotonic` counts.
        own_fences: How often the session has fenced its own transactional id.
        primary_by: From when a primary offset that is refused for a rebalance is not tried again:
            the session is about to close. By the session's clock, such as :func:`.boot_time`.
        keeps_claims: Whether claims stay in the log when it ends: a transaction is not decided, so
            who takes over has to know its id.
    """

    ownerships: Ownerships
    changed: threading.Condition = field(default_factory=threading.Condition)
    member: MemberHandle | None = None
    served: list[MemberHandle] = field(default_factory=list)
    fault: KshareError | None = None
    trouble: str = ""
    troubles: dict[str, float] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    is_closing: bool = False
    is_closed: bool = False
    has_ended: bool = False
    close_by: float = 0.0
    own_fences: int = 0
    primary_by: float = float("inf")
    keeps_claims: bool = False

    def note(self, error: Exception, now: float) -> None:
        """Keep what went wrong last, and have it logged, unless that was done lately.

        Args:
            error: What went wrong. It keeps the session from its work until that is tried again.
            now: The time.
        """
        self.trouble = text = str(error)
        lately = {each: at for each, at in self.troubles.items() if now - at < _AGAIN_SECONDS}
        self.troubles = {text: now} | lately
        if text not in lately:
            self.ownerships.warnings.append(f"group {self.ownerships.log.group}: {text}")
