"""The reader of logs that go on: partitions without an end offset, and long polls.

The records of a partition come in offset order, each at most once, as from
:class:`~kshare.read.reader.read_slice.SliceReader`, with the same loop. Where that one waits, this
one returns when it is woken, and it never waits for a single broker: other threads look up leaders
and connect, and responses are taken as they come. (Save for two round trips, to ask which offsets a
log holds, where a wanted one is out of its range.) A fault that passes is retried for ever, with a
warning now and then; an error leaves the reader in order, and the next call goes on after the last
record that was taken.

After :meth:`TailReader.take_turns`, no partition has to wait until all of another one is taken:
each gets the same share of a response, and some hundred rows at a time are delivered of each in
turn. So the first records that are taken have as many different keys as there can be.

Cost: as for a slice. One request is under way at each leader; memory is two fetch responses and one
output batch, whatever the backlog; in turns, also an arena for each of at most 8 partitions.
"""

import logging
import select
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import pyarrow as pa

from kshare.core.leader_epochs import NO_EPOCHS, LeaderEpochs
from kshare.core.progress import Slice, TopicPartition
from kshare.core.tasks import FetchGroup, PlannedSlice
from kshare.core.waits import Wait
from kshare.errors import DataLossError
from kshare.kafka.protocol.background import BackgroundBrokers, Waker
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.options import SourceOptions
from kshare.read.decode.batch_index import BatchIndex
from kshare.read.decode.codecs import Arena
from kshare.read.reader.faults import LostOffsets, why_missing
from kshare.read.reader.fetch_loop import FetchLoop
from kshare.read.reader.fetcher import Fetcher
from kshare.read.reader.partition_reader import PartitionReader
from kshare.read.reader.slice_records import SliceRecords

__all__ = ["NO_END", "LossTexts", "NamedReset", "TailReader", "TailRecords"]

_log = logging.getLogger(__name__)

NO_END = 1 << 62
"""The end of a slice that has none."""

NamedReset = Literal["earliest", "latest", "error"]
_DECODERS_MAX = 8  # partitions that keep their buffers; others give them up after each response
_ALTERNATING = 8  # partitions
_ROWS_MAX = 16_384  # a fourth takes 20 MB less, and no more time
_TURN_ROWS_MAX = 512


@dataclass(frozen=True, slots=True)
class LossTexts:
    """How the owner of a reader is to be named what it can do about lost offsets.

    Attributes:
        option: The option that says whether reading goes on, as it is set for that.
        to_go_on: What to do if deleted offsets are an error.
        to_repair: What to do if the log ends before a wanted offset.
        to_read_anew: What to do to read a topic that was made again.
        to_warn: With what setting that is a warning.
    """

    option: str
    to_go_on: str
    to_repair: str
    to_read_anew: str
    to_warn: str


GROUP_TEXTS: Final = LossTexts(
    "auto.offset.reset={reset}",
    "set auto.offset.reset to go on",
    "seek to an offset that it holds, or reset the group's offsets",
    "seek to offset {first} to read it",
    "with another auto.offset.reset, this is a warning",
)


@dataclass(frozen=True, slots=True)
class TailRecords:
    """Some records of a partition.

    Attributes:
        topic_partition: The partition.
        batch: The records, in offset order.
        end: The offset after the last one.
        epochs: First offsets, ascending, each with the leader epoch of the records up to the next.
    """

    topic_partition: TopicPartition
    batch: pa.RecordBatch
    end: int
    epochs: tuple[tuple[int, int], ...] = ()


class _TopicIds:
    """The ids of the topics that partitions were read of.

    Another thread may have heard of a topic from a broker that knows only the one before: so an id
    counts once.
    """

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, list[str]] = {}

    def is_known(self, topic_partition: TopicPartition) -> bool:
        """True if the partition was read before, of a topic that has an id."""
        return topic_partition in self._seen

    def replaced(self, topic_partition: TopicPartition, topic_id: str | None) -> str | None:
        """The id before this one if the topic is another one now; else None."""
        if topic_id is None:
            return None
        seen = self._seen.setdefault(topic_partition, [topic_id])
        if topic_id in seen:
            return None
        seen.append(topic_id)
        return seen[-2]


class _Tail:
    """The obstacle handler of a partition without an end, and what was answered for it.

    Args:
        reset: What becomes of deleted offsets that are wanted.
        read_epochs: Which leaders wrote what was read of each partition so far.
        topic_ids: Of which topics partitions were read so far.
        brokers: Knows the topic of now.
        topic_partition: The partition.
        end: The end of what is read of it.
        texts: What its owner can do about lost offsets.
        awaits_topic: Whether an unknown topic is no error.

    Attributes:
        end: As given.
        has_answered: Whether a broker has answered, or a sibling's fetch has come.
        bounds: First offset of the log and the end of what brokers hand out, by the last answer;
            None before.
        epochs: As of :class:`TailRecords`: those of the response that is being delivered.
        reader: What reads the partition; None before.
    """

    is_endless = True

    def __init__(
        self,
        reset: NamedReset,
        read_epochs: dict[TopicPartition, LeaderEpochs],
        topic_ids: _TopicIds,
        brokers: BackgroundBrokers,
        topic_partition: TopicPartition,
        end: int,
        texts: LossTexts,
        *,
        awaits_topic: bool = False,
    ) -> None:
        self.end = end
        self.awaits_topic = awaits_topic
        self._texts = texts
        self.has_answered = False
        self.bounds: tuple[int, int] | None = None
        self.reader: PartitionReader | None = None
        self.epochs: tuple[tuple[int, int], ...] = ()
        self._reset = reset
        self._read_epochs = read_epochs
        self._topic_ids = topic_ids
        self._brokers = brokers
        self._topic_partition = topic_partition
        self._hidden = WaitLog(_log)

    def answered(self, first: int, end: int, log_end: int) -> None:
        self.bounds = first, end
        self.has_answered = True
        position = None if self.reader is None else self.reader.offset
        is_hidden = position is not None and end <= position < log_end
        self._hidden.look({end: _hidden(self._topic_partition, end, log_end)} if is_hidden else {})
        topic_id = self._brokers.topic_id(self._topic_partition.topic)
        before = self._topic_ids.replaced(self._topic_partition, topic_id)
        if before is not None:
            self._made_again(first, end, f"its id was {before}, and is {topic_id}")

    def delivering(self, index: BatchIndex) -> None:
        assert index.next_offset is not None
        self.has_answered = True
        self.epochs = index.leader_epochs()
        read = self._read_epochs.get(self._topic_partition, NO_EPOCHS)
        self._read_epochs[self._topic_partition] = read.read(
            index.fetch_offset, index.next_offset, self.epochs
        )

    def _made_again(self, first: int, end: int, ids: str) -> None:
        """The topic is another one now: what is wanted of it counts as read below an offset."""
        assert self.reader is not None
        position = self.reader.position
        offset = self.end if position.offset is None else position.offset
        what = (
            f"{self._topic_partition}: the topic was deleted and made again while it was read "
            f"({ids}); the log holds offsets {first} to {end} now (end not included), and what is "
            f"below offset {offset}, up to which the former one was read, is not read"
        )
        read_anew = self._texts.to_read_anew.format(first=first)
        if self._reset == "error":
            raise DataLossError(
                f"{what}; {read_anew}; {self._texts.to_warn}",
                wanted=(first, offset),
                available=(first, end),
                **position.facts,
            )
        _log.warning("%s (%s). Going on at %d (%s)", what, read_anew, offset, self._going_on)

    def lost(self, lost: LostOffsets) -> int:
        offset, earliest = lost.wanted[0], lost.earliest
        what = (
            f"{self._topic_partition}: offset {offset} is wanted, the log holds {earliest} to "
            f"{lost.latest} (end not included): what is missing "
            f"{why_missing(is_deleted=lost.is_deleted)}"
        )
        if self._reset == "error" or not lost.is_deleted:
            hint = self._texts.to_go_on if lost.is_deleted else self._texts.to_repair
            raise DataLossError(
                f"{what}; {hint}",
                wanted=(offset, earliest if lost.is_deleted else offset + 1),
                available=(earliest, lost.latest),
                **lost.position.facts,
            )
        # Java's consumer with "latest" goes on at the end; what the log still has is pending.
        _log.warning("%s. Going on at %d (%s)", what, earliest, self._going_on)
        return earliest

    @property
    def _going_on(self) -> str:
        return self._texts.option.format(reset=self._reset)


def _hidden(partition: TopicPartition, stable: int, end: int) -> Wait:
    return Wait(
        "an open transaction hides records (isolation.level=read_committed)",
        "it is committed or aborted, at the latest by its transaction.timeout.ms; "
        "kafka-transactions.sh find-hanging names it if it is lost",
        str(partition),
        f"offsets {stable} to {end}, end not included",
    )


class TailReader:
    """Reads some partitions from given offsets on, without an end.

    For one thread; others may use ``waker`` alone.

    Args:
        options: Options of the source; columns, and how to reach Kafka.
        reset: Whether to go on if wanted offsets were deleted: `error` says no.
        waker: What ends waiting.
        texts: What its owner can do about lost offsets.
        drops_times: As for :class:`.Decoder`.
        rests: As of :class:`.FetchLoop`.

    Attributes:
        awaits_topics: Whether, of what is read from now on, an unknown topic is waited for, with a
            warning: somebody else sees that it is gone, and has it dropped. Else it is an error.
    """

    def __init__(
        self,
        options: SourceOptions,
        reset: NamedReset,
        waker: Waker,
        *,
        texts: LossTexts = GROUP_TEXTS,
        drops_times: bool = True,  # a message can say that it has none
        rests: bool = False,
    ) -> None:
        self.awaits_topics = False
        self._options = options
        self._texts = texts
        self._drops_times = drops_times
        self._reset: NamedReset = reset
        self._waker = waker
        self._brokers = BackgroundBrokers(options.kafka, waker.wake)
        self._loop = FetchLoop(options, self._brokers, time)
        self._loop.rests = rests
        self._loop.waits_for_siblings = False
        self._arena = Arena()
        self._tails: dict[TopicPartition, _Tail] = {}
        self._read_epochs: dict[TopicPartition, LeaderEpochs] = {}  # of those dropped, too
        self._topic_ids = _TopicIds()  # the same
        self._alone_from = float("inf")  # when the last requests are answered, if nobody reads
        self._batches: Generator[TailRecords | None, float, None] | None = None

    # -- which partitions -------------------------------------------------------------------

    def take_turns(self) -> None:
        """Deliver partitions that are read from now on in turn."""
        self._loop.alternating = _ALTERNATING

    def read(
        self, slice_: Slice, *, is_alone: bool = False, fetch_group: FetchGroup | None = None
    ) -> None:
        """Read a slice from now on, in place of what was read of its partition.

        Args:
            slice_: What is read.
            is_alone: Whether no other partition is read: then short turns would be of no use.
            fetch_group: Who reads some of the same offsets on this host, or may do so.
        """
        topic_partition = slice_.topic_partition
        self.drop(topic_partition)
        takes_turns = self._loop.alternating > 1
        records = SliceRecords(
            PlannedSlice(slice_, fetch_group=fetch_group),
            self._options,
            # In turns, what one decoder has decompressed stays while others decode.
            arena=None if takes_turns else self._arena,
            is_one_of_many=len(self._tails) >= _DECODERS_MAX,
            max_rows=_TURN_ROWS_MAX if takes_turns and not is_alone else _ROWS_MAX,
            drops_times=self._drops_times,
        )
        if not self._topic_ids.is_known(topic_partition):
            self._brokers.forget(topic_partition)  # the id that is remembered may be a former one
        tail = _Tail(
            self._reset,
            self._read_epochs,
            self._topic_ids,
            self._brokers,
            topic_partition,
            slice_.offsets.end,
            self._texts,
            awaits_topic=self.awaits_topics,
        )
        self._tails[topic_partition] = tail
        tail.reader = self._loop.read([records], tail)

    def drop(self, topic_partition: TopicPartition) -> None:
        """Read a partition no more."""
        self._loop.drop(topic_partition)
        self._tails.pop(topic_partition, None)  # last: a batch that is being delivered looks it up

    def delivered(self, topic_partition: TopicPartition) -> int:
        """The offset up to which all wanted records of a partition were returned; 0 if unknown."""
        tail = self._tails.get(topic_partition)  # also of one that is read to its end
        return 0 if tail is None or tail.reader is None else min(tail.reader.delivered, tail.end)

    def end(self, topic_partition: TopicPartition) -> int | None:
        """The end of a partition, as of the last answer; None if it is not known."""
        bounds = self.bounds(topic_partition)
        return None if bounds is None else bounds[1]

    def bounds(self, topic_partition: TopicPartition) -> tuple[int, int] | None:
        """First offset and end of a partition's log, by the last answer.

        None if no answer has come since :meth:`read` was called.
        """
        tail = self._tails.get(topic_partition)
        return None if tail is None else tail.bounds

    @property
    def unanswered(self) -> list[TopicPartition]:
        """The partitions that no answer has come for since :meth:`read` was called, ascending."""
        return sorted(each for each, tail in self._tails.items() if not tail.has_answered)

    def leader_epochs(self, topic_partition: TopicPartition) -> LeaderEpochs:
        """The leader epochs of a partition's records read so far. May be called by any thread."""
        return self._read_epochs.get(topic_partition, NO_EPOCHS)

    # -- records ----------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait without reading."""
        self._waker.wait(seconds)

    def next_records(self, seconds: float) -> TailRecords | None:
        """The next records of any partition; None if there are none within that time.

        May return None before the time is over.

        Raises:
            KshareError: A partition cannot be read now. The next call tries again.
        """
        if time.monotonic() >= self._alone_from:
            # No request was waiting at the brokers: a topic may have been made again unnoticed.
            for topic_partition in self._tails:
                is_looked_up = topic_partition in self._loop.waiting  # maybe since the call before
                self._brokers.forget(topic_partition, keeps_search=is_looked_up)
        try:
            if self._batches is None:
                self._batches = self._tail()
                next(self._batches)
            return self._batches.send(seconds)
        except BaseException:
            # What was under way is not wanted: ask again for what was not taken.
            self._batches = None
            self._loop.rewind()
            raise
        finally:
            waits = self._options.kafka.fetch_max_wait_ms / 1000
            self._alone_from = time.monotonic() + waits

    def close(self) -> None:
        """Give back all connections."""
        self._batches = None
        self._tails = {}
        self._loop.close()
        self._brokers.close()

    def _tail(self) -> Generator[TailRecords | None, float, None]:
        """The records of all partitions; None whenever there is nothing to be had at once.

        It is sent how long to wait for the next ones.
        """
        seconds = yield None
        while True:
            got_none = True
            for partition, batch in self._loop.step(partial(self._answered, seconds)):
                got_none = False
                topic_partition = partition.topic_partition
                with self._loop.clock.stopped():
                    seconds = yield TailRecords(
                        topic_partition,
                        batch,
                        partition.delivered,
                        self._tails[topic_partition].epochs,
                    )
            if got_none:
                with self._loop.clock.stopped():
                    seconds = yield None

    def _answered(self, seconds: float) -> list[Fetcher]:
        """Wait for answers; return the fetchers that have one."""
        asked = {
            fetcher.connection.fileno(): fetcher
            for fetcher in self._loop.asked
            if fetcher.connection is not None
        }
        until = time.monotonic() + min(seconds, self._loop.seconds_until_due)
        while True:
            left = until - time.monotonic()
            ready = self._waker.wait(left, dict.fromkeys(asked, select.POLLIN))
            heard = [asked[socket] for socket in ready]
            answered = [fetcher for fetcher in heard if self._has_answered(fetcher)]
            # The rest of a long answer is waited for here: each turn of a caller costs more.
            is_amid_one = heard and not answered and all(each.is_waiting for each in heard)
            if not is_amid_one or left <= 0 or self._waker.has_woken:
                break
        for fetcher in self._loop.asked:
            if fetcher.is_overdue and fetcher not in answered:  # frozen, or cut off: no FIN comes
                host, port = fetcher.address
                late = f"{host}:{port} has not answered within request.timeout.ms"
                self._loop.lose(fetcher, TimeoutError(late))
        return answered

    def _has_answered(self, fetcher: Fetcher) -> bool:
        """True if the whole answer is there: a broker may freeze amid one, and keeps nobody up."""
        try:
            return fetcher.receive_ready()
        except OSError as error:
            self._loop.lose(fetcher, error)
            return False
