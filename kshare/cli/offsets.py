"""``kshare offsets``: what a key-shared consumer group has committed; reset, drop.

Guarantees: nothing is changed while a member of the group is alive.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from kshare.cli.connection import is_given, kafka_config
from kshare.cli.show import partition_text
from kshare.cluster.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.core.progress import TopicPartition
from kshare.group.model import OffsetAndMetadata
from kshare.group.offsets import GroupOffsets, ResetTo
from kshare.group.status import log_bounds
from kshare.monitor.plot import draw_partitions
from kshare.monitor.status import PartitionStatus, partition_status
from kshare.options import KafkaConfig

__all__ = ["run"]

_WANTED: Final = 'wanted earliest, latest, stable, or offsets such as {"orders": {"0": 123}}'


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code."""
    if not is_given(arguments):
        parser.error("which cluster? Give --bootstrap-servers, or --kafka-config")
    if (arguments.action == "reset") != (arguments.to is not None):
        parser.error("reset needs --to, and only reset takes it")
    to = None
    if arguments.to is not None:
        to = _reset_to(arguments.to)
        if to is None:
            parser.error(f"argument --to: {arguments.to!r}: {_WANTED}")
    kafka = kafka_config(arguments)
    topic = arguments.log_topic or INDIVIDUAL_COMMITS_TOPIC
    with closing(GroupOffsets(kafka, arguments.group, topic)) as offsets:
        if to is not None:
            for partition, offset in sorted(offsets.reset(to).items()):
                sys.stdout.write(f"{partition}: starts at offset {offset}\n")
        elif arguments.action == "drop":
            count = offsets.drop()
            sys.stdout.write(f"{count} records of group {arguments.group} deleted\n")
        else:
            _show(kafka, arguments, offsets.committed())
    return 0


def _show(
    kafka: KafkaConfig,
    arguments: argparse.Namespace,
    found: Mapping[TopicPartition, OffsetAndMetadata],
) -> None:
    wanted = {tp: each for tp, each in found.items() if arguments.topic in {None, tp.topic}}
    logs = log_bounds(kafka, wanted, lambda error: sys.stderr.write(f"warning: {error}\n"))
    shown = {tp: partition_status(tp, each.progress, logs.get(tp)) for tp, each in wanted.items()}
    if arguments.plot is not None:
        draw_partitions(f"group {arguments.group}", list(shown.values()), arguments.plot)
    if arguments.json:
        listed = [_as_json(shown[tp], each) for tp, each in wanted.items()]
        sys.stdout.write(json.dumps(listed, indent=2) + "\n")
    elif not shown:
        sys.stdout.write(f"group {arguments.group} has committed nothing\n")
    else:
        sys.stdout.write("".join(partition_text(each) for each in shown.values()))


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


def _reset_to(text: str) -> ResetTo | None:
    """Where a group shall start; None if the text does not say it."""
    if text in {"earliest", "latest", "stable"}:
        return text  # type: ignore[return-value]
    try:
        offsets = {
            TopicPartition(str(topic), int(number)): offset
            for topic, of_topic in json.loads(text).items()
            for number, offset in of_topic.items()
        }
    except (ValueError, AttributeError):
        return None
    is_valid = offsets and all(type(each) is int and each >= 0 for each in offsets.values())
    return offsets if is_valid else None
