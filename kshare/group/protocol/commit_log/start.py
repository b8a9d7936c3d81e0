"""Where the consumption of a partition starts: the primary offset and the log, together.

The primary offset (in ``__consumer_offsets``) carries an anchor in its metadata: incarnation, log
position and id of the log's topic. Individual commits count only under their anchor. So after
``kafka-consumer-groups --reset-offsets``, or when the primary offset has expired, they are void.
"""

import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from kshare.core.bounded_json import DAMAGE, JsonBounds, count_of, read_object, text_of
from kshare.core.hashing import KeyRanges
from kshare.core.progress import Progress
from kshare.group.protocol.commit_log.log import PartitionLog

__all__ = [
    "Anchor",
    "Evidence",
    "Primary",
    "Reason",
    "Start",
    "needs_initial_offset",
    "resolve_start",
    "start_without_log",
]

_NAME = "kshare"
_VERSION = 1
_BOUNDS: Final = JsonBounds(size=1 << 20, depth=4, containers=1 << 10)


@dataclass(frozen=True, slots=True)
class Anchor:
    """What ties a primary offset to the individual commit log.

    Attributes:
        incarnation: The incarnation to which the offset belongs.
        position: The log offset up to which the log had been read when it was written.
        topic_id: Id of the log's topic, as text; empty if it is not known.
    """

    incarnation: int
    position: int
    topic_id: str = ""

    def encode(self) -> str:
        """The metadata of the primary offset."""
        fields = {
            _NAME: _VERSION,
            "incarnation": self.incarnation,
            "position": self.position,
            "topic_id": self.topic_id,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, metadata: str | None) -> "Anchor | None":
        """The anchor that some metadata hold; None if they hold none."""
        try:
            fields = read_object(metadata or "", _BOUNDS)
            if fields.get(_NAME) != _VERSION:
                return None
            incarnation, position = count_of(fields["incarnation"]), count_of(fields["position"])
            return cls(incarnation, position, text_of(fields["topic_id"]))
        except DAMAGE:
            return None


@dataclass(frozen=True, slots=True)
class Primary:
    """A partition's offset in ``__consumer_offsets``.

    Attributes:
        offset: The offset.
        anchor: Ties it to the log; None if nothing does.
        leader_epoch: Leader epoch of the last record before it; None if it is not known.
    """

    offset: int
    anchor: Anchor | None = None
    leader_epoch: int | None = None


class Reason(Enum):
    """Why consumption starts where it does."""

    NEW = "the group has no committed offset"
    CONTINUED = "the group goes on"
    ADOPTED = "the group goes on from an offset that a plain consumer or a tool has committed"
    RESET = "the offsets were reset by Kafka's own tool, or committed by a plain consumer"
    EXPIRED = "the committed offset has expired"
    LOST_LOG = "the individual commit log was deleted or truncated"
    UNREAD_LOG = "the group keeps no log any more (allow.individual.commit=false)"

    @property
    def voids(self) -> bool:
        """True if individual commits may have been given up, which is worth a line in the log."""
        return self in {Reason.RESET, Reason.EXPIRED, Reason.LOST_LOG, Reason.UNREAD_LOG}


@dataclass(frozen=True, slots=True)
class Start:
    """Where the consumption of a partition starts.

    Attributes:
        reason: Why.
        incarnation: The incarnation to which commits belong.
        progress: What has been processed.
        begins: Whether a `Reset` of this incarnation, with the stable offset of ``progress``, has
            to be written and read back, and the start resolved again.
        unanchored: Whether the primary offset has to be written, with an anchor, before anything
            is committed.
        lags: Whether the primary offset is behind what the log says: its lead has not come to
            write it.
        leader_epoch: Leader epoch of the last processed record; None if it is not known.
    """

    reason: Reason
    incarnation: int
    progress: Progress
    begins: bool = False
    unanchored: bool = False
    lags: bool = False
    leader_epoch: int | None = None


_GOES_ON: Final = {Reason.CONTINUED, Reason.LOST_LOG}
"""What has been processed before the log was lost still counts."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a start is resolved from, as far as it is known.

    Attributes:
        primary: The primary offset, and the log's bounds beside it; None if they are not fetched.
        seen: Of the log, before the primary was asked for: its incarnation, and whether it has
            facts.
        initial: What ``auto.offset.reset`` means; None if it is not known.
        voids: Why individual commits were given up; None if they were not.
        known: The incarnation and progress known before the log was lost or the claim replaced;
            None if unknown.
        resets: How many resets the owner has wanted to write.
    """

    primary: tuple[Primary | None, int, int] | None = None
    seen: tuple[int, bool] = (0, False)
    initial: int | None = None
    voids: Reason | None = None
    known: tuple[int, Progress] | None = None
    resets: int = 0

    def forgotten(self) -> "Evidence":
        """What is left when brokers have to be asked again."""
        return replace(self, primary=None, initial=None)

    def knowing(self, hashes: KeyRanges) -> "Evidence":
        """What is left when nothing is known to be processed but of these key hashes."""
        if self.known is None or hashes.is_all:
            return self
        incarnation, progress = self.known
        known = (incarnation, progress.within(hashes)) if hashes else None
        return replace(self, known=known)

    def still_processed(self, start: Start) -> Progress | None:
        """What was known to be processed before, if that counts after a start."""
        if self.known is None or self.known[0] != start.incarnation:
            return None
        return self.known[1] if start.reason in _GOES_ON else None


def needs_initial_offset(primary: Primary | None, log: PartitionLog) -> bool:
    """True if ``auto.offset.reset`` decides where consumption starts."""
    return primary is None and (log.has_facts or log.reset_to is None)


def resolve_start(
    primary: Primary | None,
    log: PartitionLog,
    *,
    log_end: int,
    log_start: int = 0,
    topic_id: str = "",
    initial: int | None = None,
) -> Start:
    """Where the consumption of a partition starts.

    Args:
        primary: The primary offset; None if there is none.
        log: What the individual commit log says of the partition, read to its end.
        log_end: The end of the log.
        log_start: The first offset of the log; compaction leaves it alone.
        topic_id: Id of the log's topic; empty if it is not known.
        initial: What ``auto.offset.reset`` means; given if :func:`needs_initial_offset`.
    """
    if primary is None:
        return _without_primary(log, initial)
    start = _from_primary(primary, log, log_end, log_start, topic_id)
    return replace(start, leader_epoch=_leader_epoch(start, primary, log))


def start_without_log(primary: Primary | None, initial: int | None) -> Start:
    """The start of a partition in a group that keeps no log.

    An anchor is of members that had one. What they have committed above the offset is in their
    log, which nobody reads: it is delivered again. The next offset that is committed has no anchor,
    so members that keep a log later take it for a plain consumer's.

    Args:
        primary: The primary offset; None if there is none.
        initial: What ``auto.offset.reset`` means; given if there is no primary offset.
    """
    if primary is None:
        assert initial is not None
        return Start(Reason.NEW, 0, Progress.at(initial), begins=True)
    reason = Reason.CONTINUED if primary.anchor is None else Reason.UNREAD_LOG
    done = Progress.at(primary.offset)
    return Start(reason, 0, done, begins=True, leader_epoch=primary.leader_epoch)


def _leader_epoch(start: Start, primary: Primary, log: PartitionLog) -> int | None:
    """The leader epoch that was committed beside the offset of a start."""
    offset, said = start.progress.stable, log.stable
    goes_on = start.reason in {Reason.CONTINUED, Reason.LOST_LOG}
    if goes_on and start.incarnation == log.incarnation and said and said.offset == offset:
        return said.leader_epoch
    return primary.leader_epoch if primary.offset == offset else None


def _from_primary(
    primary: Primary, log: PartitionLog, log_end: int, log_start: int, topic_id: str
) -> Start:
    anchor = primary.anchor
    if anchor is None:
        if log.reset_to == primary.offset and not log.has_facts:
            # Somebody has begun this incarnation, and has not come to write the anchor.
            return Start(
                Reason.ADOPTED, log.incarnation, Progress.at(primary.offset), unanchored=True
            )
        reason = Reason.RESET if log.has_facts else Reason.ADOPTED
        return _new_incarnation(reason, log, primary.offset)
    if anchor.incarnation < log.incarnation and log.reset_to is not None:
        # A reset whose second half is still to do, or was undone by who had not read of it. Members
        # may have committed since.
        done = log.progress(log.reset_to)
        return Start(Reason.RESET, log.incarnation, done, unanchored=True)
    is_truncated = not log_start <= anchor.position <= log_end
    is_another = "" not in {anchor.topic_id, topic_id} and anchor.topic_id != topic_id
    is_lost = is_truncated or is_another
    reason = Reason.LOST_LOG if is_lost else Reason.CONTINUED
    if anchor.incarnation > log.incarnation:  # its reset is gone with the log
        return Start(Reason.LOST_LOG, anchor.incarnation, Progress.at(primary.offset), begins=True)
    progress = log.progress(primary.offset)
    lags = not is_lost and primary.offset < progress.stable
    return Start(reason, log.incarnation, progress, unanchored=is_lost, lags=lags)


def _without_primary(log: PartitionLog, initial: int | None) -> Start:
    if log.reset_to is not None and not log.has_facts:
        return Start(Reason.NEW, log.incarnation, Progress.at(log.reset_to), unanchored=True)
    assert initial is not None
    return _new_incarnation(Reason.EXPIRED if log.has_facts else Reason.NEW, log, initial)


def _new_incarnation(reason: Reason, log: PartitionLog, offset: int) -> Start:
    return Start(reason, log.incarnation + 1, Progress.at(offset), begins=True, unanchored=True)
