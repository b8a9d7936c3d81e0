"""Room for more records, and how partitions share it where each is processed in order."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from kshare.core.progress import TopicPartition
from kshare.dead_letters.record import Record
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing.core.lane import Lane, State
from kshare.processing.handling import Handling

__all__ = ["Allotment", "Room", "Shares"]

_GATHER_SECONDS: Final = 0.01
_FULL_SECONDS: Final = 1.0
"""After so long without room, partitions are paused and the group is followed meanwhile."""


class Room:
    """Room for more records: the engine's, less those on their way to it.

    Args:
        of_engine: How many records the engine may take, and of which size together.
        worth_reading: Number of records that are worth a look at the consumer.
    """

    def __init__(self, of_engine: Callable[[], tuple[int, int]], worth_reading: int) -> None:
        self._of_engine = of_engine
        self._worth_reading = worth_reading
        self._has_changed = threading.Event()
        self._sent = self._sent_bytes = 0  # by the reader
        self._taken = self._taken_bytes = 0  # by the engine's thread

    @property
    def left(self) -> int:
        """Number of records that may be read now."""
        # That first: what arrives between the two looks counts twice, and not never.
        on_their_way = self.on_their_way
        return 0 if self.bytes_left <= 0 else self._of_engine()[0] - on_their_way

    @property
    def bytes_left(self) -> int:
        """Size of the records that may be read now."""
        on_their_way = self._sent_bytes - self._taken_bytes  # first, too
        return self._of_engine()[1] - on_their_way

    @property
    def on_their_way(self) -> int:
        """Number of records that were sent and have not arrived."""
        return self._sent - self._taken

    def send(self, records: Sequence[Record]) -> None:
        """Some records are on their way."""
        self._sent_bytes += sum([record.size for record in records])
        self._sent += len(records)

    def take(self, records: Sequence[Record]) -> None:
        """Some records have arrived: the engine counts them now."""
        self._taken_bytes += sum([record.size for record in records])
        self._taken += len(records)

    def changed(self) -> None:
        """Have the reader look again, if it waits. From any thread."""
        self._has_changed.set()

    def wait_for_arrival(self) -> None:
        """Wait until what was sent has arrived, for a second at most."""
        end = time.monotonic() + _FULL_SECONDS
        self._wait_while(lambda: self.on_their_way > 0, lambda: end)

    def wait(self, until: Callable[[], bool]) -> bool:
        """Wait until there is room; for a moment, until it is worth a look at the consumer.

        Args:
            until: What ends the wait besides; looked at when something has :meth:`changed`.

        Returns:
            True if there is room.
        """
        if self.left >= self._worth_reading:
            return True
        began = time.monotonic()
        self._wait_while(
            lambda: self.left < self._worth_reading and not until(),
            lambda: began + (_FULL_SECONDS if self.left <= 0 else _GATHER_SECONDS),
        )
        return self.left > 0

    def _wait_while(self, goes_on: Callable[[], bool], end: Callable[[], float]) -> None:
        while goes_on() and (seconds := end() - time.monotonic()) > 0:
            self._has_changed.clear()
            if goes_on():  # what changed before it was cleared is seen by this
                self._has_changed.wait(seconds)


class Allotment(NamedTuple):
    """Bounds of the next read.

    Attributes:
        records: Maximum number of records.
        size: Their maximum size together in bytes; a single record may be larger.
    """

    records: int
    size: int

    def fits(self, size: int) -> int:
        """Number of records of a size that may be read; at least one."""
        return max(min(self.records, self.size // max(size, 1)), 1)


class Shares:
    """Keeps room for other partitions while a record waits, with ``order="partition"``.

    What is read behind a record that waits for its next attempt, or for its dead letter, would fill
    all of the room. So once a quarter of it is held, the partitions that wait and hold a fourth of
    an equal share are paused, until they hold less, or less than a quarter is held in all. Those
    that do not wait are never paused: to go on costs another fetch.

    Cost: linear in the lanes for each read, once a quarter of the room is held.
    For the reader's thread.

    Args:
        processor: Says what is processed in order, and how much is held.
        consumer: Reads the partitions.
        room: The room.

    Attributes:
        paused: Partitions that this has paused.
    """

    def __init__(self, processor: Handling, consumer: KeySharedConsumer, room: Room) -> None:
        self.paused = set[TopicPartition]()
        self._knows_paused = True
        self._settings = processor.settings
        self._is_by_partition = processor.order == "partition"
        self._consumer = consumer
        self._room = room

    def allot(self, lanes: Callable[[], Collection[Lane]]) -> Allotment:
        """Pause partitions that wait and hold enough, resume others; return what may be read next.

        Args:
            lanes: What is held of each partition; called only where partitions share.
        """
        left = Allotment(self._room.left, self._room.bytes_left)
        if not self._is_by_partition:
            return left
        assigned = set(self._consumer.assignment())
        if len(assigned) <= 1:
            self._pause(set(), assigned)
            return left
        most, size_most = self._settings.records_max, self._settings.bytes_max
        used = max((most - left.records) / most, (size_most - left.size) / size_most)
        full = set[TopicPartition]()
        if used >= 1 / 4:
            self._room.wait_for_arrival()  # what is on its way is in no lane
            parts = 4 * len(assigned)
            full = self._full(lanes(), most // parts, size_most // parts)
        self._pause(full, assigned)
        # Half of it: what is read next may be of a partition that waits soon.
        return Allotment(left.records // 2, left.size // 2)

    def _full(self, lanes: Collection[Lane], records: int, size: int) -> set[TopicPartition]:
        """The partitions that wait, or did so when they were paused, and hold so much."""
        return {
            lane.key  # type: ignore[misc]
            for lane in lanes
            if (lane.state >= State.WAITING or lane.key in self.paused)
            and (len(lane.records) > records or lane.size > size)
        }

    def forget(self) -> None:
        """Others have paused or resumed partitions, or they are newly assigned."""
        self._knows_paused = False

    def _pause(self, partitions: set[TopicPartition], assigned: set[TopicPartition]) -> None:
        partitions &= assigned
        if partitions == self.paused and self._knows_paused:
            return
        # Only what this has paused: the user may have paused others.
        self._consumer.resume((self.paused & assigned) - partitions)
        self._consumer.pause(partitions - self.paused if self._knows_paused else partitions)
        self.paused, self._knows_paused = partitions, True
