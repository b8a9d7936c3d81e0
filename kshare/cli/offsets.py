"""``kshare offsets``: what a key-shared consumer group has committed; reset, drop.

Guarantees: nothing is changed while a member of the group is alive, but for records that nobody can
read. The targets of a reset are
given in the words of Kafka's own tool.
"""

import argparse
import re
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kshare.cli.connection import log_topic, needed_kafka_config
from kshare.cli.output import Answer, complain, counted, line_of
from kshare.cli.show import partition_text
from kshare.core.bounded_json import read_object
from kshare.core.listing import printable
from kshare.core.progress import TopicPartition
from kshare.group.log.primary import OffsetAndMetadata
from kshare.group.tools.offsets import GroupOffsets
from kshare.group.tools.reset_target import ResetTo, ShiftBy
from kshare.kafka.cluster import Cluster
from kshare.kafka.examination import log_bounds
from kshare.monitor.plot import draw_partitions
from kshare.monitor.status import PartitionStatus, partition_status
from kshare.options import KafkaConfig
from kshare.options.kinds import parse_duration, topic_fault

__all__ = ["reset_target", "run"]

_WANTED: Final = 'wanted earliest, latest, stable, or offsets such as {"orders": {"0": 123}}'
_PARTITIONS: Final = range(1 << 31)
_ISO_DURATION: Final = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII
)
_FLAGS: Final = {
    "to": "--to",
    "to_datetime": "--to-datetime",
    "by_duration": "--by-duration",
    "shift_by": "--shift-by",
}


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Answer:
    """Run the command."""
    if arguments.dry_run and arguments.action == "list":
        parser.error("only reset and drop take --dry-run")
    if arguments.damaged and arguments.action != "drop":
        parser.error("only drop takes --damaged")
    to = reset_target(parser, arguments, datetime.now(UTC))
    if isinstance(to, Mapping) and arguments.topic is not None:
        parser.error("argument --topic: --to names topics itself")
    kafka = needed_kafka_config(parser, arguments)
    with closing(GroupOffsets(arguments.group, kafka, log_topic(arguments, kafka))) as offsets:
        if to is not None:
            return _reset(arguments, offsets, to)
        if arguments.action == "drop":
            return _drop(arguments, offsets)
        return _list(kafka, arguments, offsets.checked().committed())


def _reset(arguments: argparse.Namespace, offsets: GroupOffsets, to: ResetTo) -> Answer:
    is_dry_run = arguments.dry_run
    reset = sorted(offsets.reset(to, topic=arguments.topic, is_dry_run=is_dry_run).items())
    rows = [{**tp._asdict(), "offset": offset, "dry_run": is_dry_run} for tp, offset in reset]
    starts = "would start" if is_dry_run else "starts"
    text = "".join(line_of(f"{tp}: {starts} at offset {offset}") for tp, offset in reset)
    if is_dry_run:
        text += (
            "nothing was changed (--dry-run). A reset also voids what the group has committed "
            "above its stable offsets in these partitions\n"
        )
    return Answer(rows, text)


def _drop(arguments: argparse.Namespace, offsets: GroupOffsets) -> Answer:
    drop = offsets.drop_damaged if arguments.damaged else offsets.drop
    count = drop(topic=arguments.topic, is_dry_run=arguments.dry_run)
    fields = {"group": arguments.group, "records": count, "dry_run": arguments.dry_run}
    deleted = "would be deleted" if arguments.dry_run else "deleted"
    return Answer(
        fields, line_of(f"{counted(count, 'record')} of group {arguments.group} {deleted}")
    )


def _list(
    kafka: KafkaConfig,
    arguments: argparse.Namespace,
    found: Mapping[TopicPartition, OffsetAndMetadata],
) -> Answer:
    wanted = {tp: each for tp, each in found.items() if arguments.topic in {None, tp.topic}}
    with closing(Cluster(kafka)) as cluster:
        logs = log_bounds(cluster, wanted, lambda error: complain(f"warning: {error}"))
    shown = {tp: partition_status(tp, each.progress, logs.get(tp)) for tp, each in wanted.items()}
    if arguments.plot is not None:
        draw_partitions(f"group {arguments.group}", list(shown.values()), arguments.plot)
    rows = [_as_json(shown[tp], each) for tp, each in wanted.items()]
    if not shown:
        of_topic = "" if arguments.topic is None else f" of topic {printable(arguments.topic)}"
        return Answer(rows, line_of(f"group {arguments.group} has committed nothing{of_topic}"))
    return Answer(rows, "".join(partition_text(each) for each in shown.values()))


def _as_json(shown: PartitionStatus, committed: OffsetAndMetadata) -> dict[str, Any]:
    return {
        "topic": shown.topic_partition.topic,
        "partition": shown.topic_partition.partition,
        "offset": committed.offset,
        "front": shown.done.front,
        "end": shown.log[1] if shown.log else None,
        "lag": shown.lag,
        "range_offsets": [list(pair) for pair in committed.range_offsets],
        "individual_commits": [
            {
                "offsets": [piece.offsets.start, piece.offsets.end],
                "hashes": [piece.hashes.lo, piece.hashes.hi],
            }
            for piece in committed.individual_commits
        ],
        "metadata": committed.metadata,
        "leader_epoch": committed.leader_epoch,
    }


def reset_target(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, now: datetime
) -> ResetTo | None:
    """The target of the reset; None if the command has another purpose.

    Args:
        parser: Takes the fault of an argument.
        arguments: The arguments of ``kshare offsets``.
        now: The time that a duration is before.
    """
    given = [name for name in _FLAGS if getattr(arguments, name) is not None]
    listed = ", ".join(_FLAGS.values())
    if arguments.action != "reset":
        if given:
            parser.error(f"only reset takes {_FLAGS[given[0]]}")
        return None
    if len(given) != 1:
        parser.error(f"reset needs one of {listed}")
    try:
        return _target(given[0], getattr(arguments, given[0]), now)
    except ValueError as error:
        value = getattr(arguments, given[0])
        parser.error(f"argument {_FLAGS[given[0]]}: {value!r}: {error}")


def _target(name: str, text: str, now: datetime) -> ResetTo:
    match name:
        case "to":
            return _place(text)
        case "to_datetime":
            return _moment(text)
        case "by_duration":
            try:
                return now - _duration(text)
            except OverflowError:
                raise ValueError("that is before the year 1; wanted such as P1D or 90m") from None
    try:
        return ShiftBy(int(text))
    except ValueError:
        raise ValueError("wanted a number of offsets, such as -100") from None


def _place(text: str) -> ResetTo:
    if text in {"earliest", "latest", "stable"}:
        return text  # type: ignore[return-value]
    try:
        offsets = {
            TopicPartition(str(topic), int(number)): offset
            for topic, of_topic in read_object(text).items()
            for number, offset in of_topic.items()
        }
    except (ValueError, AttributeError):
        raise ValueError(_WANTED) from None
    if not offsets or any(
        type(offset) is not int
        or offset < 0
        or topic_fault(tp.topic)
        or tp.partition not in _PARTITIONS
        for tp, offset in offsets.items()
    ):
        raise ValueError(_WANTED)
    return offsets


def _moment(text: str) -> datetime:
    """A time; without a time zone it is UTC, as for Kafka's tool."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "wanted an ISO 8601 time, such as 2026-03-01T06:00:00Z (UTC without a zone)"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _duration(text: str) -> timedelta:
    """A duration, as ISO 8601 has it (``PT1H30M``), or with one unit (``90m``)."""
    match = _ISO_DURATION.fullmatch(text.upper())
    if match is None:
        return timedelta(seconds=parse_duration(text))
    if not any(match.groups()):
        raise ValueError("wanted a duration, such as PT1H30M, P1D or 90m")
    weeks, days, hours, minutes, seconds = (float(each or 0) for each in match.groups())
    return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
