"""A round of a history: processes of one group, records each second, and what happens to both.

::

    group_round: topic, group, observer --> Round.chaos, each second: keep, write, disturb --> judge

The rounds (:mod:`integration.member_histories`, :mod:`integration.handler_histories`,
:mod:`integration.query_histories`) say which processes there are, what else is done to them, and
what has to hold in the end.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from integration.conditions import Observer, disturb, disturb_broker
from integration.members import Group, Member

__all__ = ["Round", "copies_of", "group_round"]

_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.6


@dataclass
class Round(ABC):
    """Processes of one group, and what happens to them.

    Args:
        group: The group.
        chance: What happens.
    """

    member_chance: ClassVar[float]
    """How likely it is in a second that a process is killed, ended or suspended."""
    broker_chance: ClassVar[float]
    """How likely it is in a second that a broker is killed or frozen, or a leader moved."""

    group: Group
    chance: random.Random

    @abstractmethod
    def keep(self) -> None:
        """Start processes in the places of those that have ended."""

    @abstractmethod
    def write(self) -> None:
        """Write the records of a second."""

    @abstractmethod
    def disturb(self) -> None:
        """Do something of the round's own, or nothing."""

    def living(self) -> list[Member]:
        """Those that were not killed or ended; who is fenced, or about to be, is among them."""
        return [each for each in self.group.members if each.process.poll() is None]

    def chaos(self, seconds: float, cluster: Any = None) -> None:
        """Write records, and kill and suspend processes meanwhile.

        Args:
            seconds: For how long.
            cluster: Whose brokers are killed and frozen, and whose leaders are moved, too; None for
                none.
        """
        chance, until = self.chance, time.monotonic() + seconds
        while time.monotonic() < until:
            self.keep()
            began = time.monotonic()
            self.write()
            # So that some are in a call, and some are in hand.
            time.sleep(_PAUSE_SECONDS * chance.random())
            if chance.random() < self.member_chance and (living := self.living()):
                disturb(chance.choice(living), chance)
            self.disturb()
            if cluster is not None and chance.random() < self.broker_chance:
                self.group.faults.append(disturb_broker(self.group.topic, cluster, chance))
            time.sleep(max(0.0, began + _SECONDS - time.monotonic()))


def copies_of(cluster: Any) -> dict[str, int]:
    """Arguments for topics: a replica on each broker; none without a cluster."""
    return {} if cluster is None else {"replication": len(cluster.brokers)}


@contextmanager
def group_round(
    where: Any,
    cluster: Any,
    folder: Path,
    key_of: Callable[[int], bytes],
    partitions: int = 1,
) -> Iterator[tuple[Group, Observer]]:
    """A group with a new topic, and who observes it. Its processes are ended at the end.

    Args:
        where: Makes topics.
        cluster: Whose brokers have the topic's replicas; None for one broker.
        folder: Where processes write what they do.
        key_of: The key of each offset.
        partitions: Of the topic.
    """
    topic = where.create_topic(None, partitions, **copies_of(cluster))
    with (
        closing(Group(where, topic, folder)) as group,
        Observer(where, topic, topic, key_of) as observer,
    ):
        yield group, observer
