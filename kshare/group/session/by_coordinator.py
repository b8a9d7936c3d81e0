"""A session in a group that keeps no log: it goes by the group's coordinator alone.

As a plain Kafka consumer: the coordinator says who has a partition, one offset of each is
committed, and a member delivers while its last heartbeat that was answered is not older than the
session time-out. No topic is read or made, nobody claims or beats.

A standalone session (``assign``) has no coordinator, so nobody keeps others from its partitions, as
with Kafka's own ``assign``.
"""

import logging
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Final

from kshare.core.waits import Wait
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.right import Right
from kshare.group.core.waiting import commit_waits, right_waits, start_waits
from kshare.group.log.log_link import Written
from kshare.group.protocol.commit_log.records import Epoch
from kshare.group.session.offset_actions import OffsetActions
from kshare.group.session.shared import Shared
from kshare.kafka.protocol.background import Beside
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.options import KafkaConfig

__all__ = ["ByCoordinator"]

_log = logging.getLogger("kshare.group")
_LOOK_SECONDS: Final = 1.0


class ByCoordinator:
    """A session of a group that keeps no log; has the methods of :class:`.ByLog`.

    Args:
        config: The consumer's configuration.
        brief: How to reach the cluster, with a short time for an answer.
        session_id: Id of the session.
        shared: What the session owns.
        now: The session's source of time.
        beside: Does what waits for brokers.

    Attributes:
        actions: Does what owners want of brokers.
        right: The right of the member to deliver.
        partition: None: there is no log.
        sockets: None to wait for: members have theirs.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        brief: KafkaConfig,
        session_id: str,
        shared: Shared,
        now: Callable[[], float],
        beside: Beside,
    ) -> None:
        self.actions = OffsetActions(config, brief, shared, now, beside)
        self.right = Right(session_id, 0.0, by_beats=False, keeps_log=False)
        self.partition = None
        self.sockets: dict[int, int] = {}
        self._shared = shared
        self._now = now
        self._waits = WaitLog(_log, f"group {config.group}, member {session_id}", clock=now)
        self._look_at = 0.0
        shared.notices.append(
            f"group {config.group} keeps no log of individual commits, as "
            "allow.individual.commit is false: one offset of each partition is committed, and the "
            "group's coordinator alone says who has it; with assign, nobody does"
        )

    def metrics(self) -> None:
        """None: there is no log."""

    def found(self, wait: Callable[[], None]) -> None:
        """None: there is no log."""

    @property
    def next_time(self) -> float:
        """The time of the next step, if nothing happens before. Takes the lock."""
        with self._shared.changed:
            return min(self._look_at, self._shared.ownerships.next_time())

    def ask(self) -> None:
        """There is nothing to ask for."""

    def receive(self, ready: Collection[int]) -> None:
        """Nothing comes."""

    def step(self) -> None:
        """Do what owners want, and see now and then what is waited for."""
        self.actions.act_on_offsets()
        now = self._now()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            with self._shared.changed:
                waits = self._waiting(now)
            self._waits.look(waits)

    def _waiting(self, now: float) -> dict[Hashable, Wait]:
        member, trouble = self._shared.member, self._shared.trouble
        ownerships = self._shared.ownerships
        return {
            **({} if member is None else member.waits()),
            **right_waits(self.right, ownerships.started(), trouble, now),
            **start_waits(ownerships, trouble),
            **commit_waits(ownerships),
        }

    def renew_right(self) -> bool:
        """False: what the coordinator answers renews it, and its member says so."""
        return False

    def write_epoch(
        self,
        epoch: Epoch,  # noqa: ARG002 - it is written nowhere
        written: Written,
        is_wanted: Callable[[], bool],  # noqa: ARG002 - the plan is wanted now
    ) -> None:
        """Say that there is none: the coordinator's generations order assignments."""
        written(None, "")

    def leave(self) -> None:
        """There are no claims to give up."""

    def withdraw(self) -> None:
        """Nothing was said."""

    def closers(self) -> Iterator[Callable[[], None]]:
        """Calls for the end."""
        yield self.actions.close
