"""``kshare offsets``: what a key-shared consumer group has committed; reset, drop.

Guarantees: nothing is changed while a member of the group is alive.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from kshare.cli.connection import is_given, kafka_config
from kshare.cli.reset_target import reset_target
from kshare.cli.show import partition_text
from kshare.cluster.cluster import Cluster
from kshare.cluster.log_bounds import log_bounds
from kshare.cluster.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.core.progress import TopicPartition
from kshare.group.model import OffsetAndMetadata
from kshare.group.offsets import GroupOffsets
from kshare.group.reset_targets import ResetTo
from kshare.monitor.plot import draw_partitions
from kshare.monitor.status import PartitionStatus, partition_status
from kshare.options import KafkaConfig

__all__ = ["run"]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code."""
    if not is_given(arguments):
        parser.error("which cluster? Give --bootstrap-servers, or --kafka-config")
    if arguments.dry_run and arguments.action == "list":
        parser.error("only reset and drop take --dry-run")
    to = reset_target(parser, arguments, datetime.now(UTC))
    if isinstance(to, Mapping) and arguments.topic is not None:
        parser.error("argument --topic: --to names topics itself")
    kafka = kafka_config(arguments)
    topic = arguments.log_topic or INDIVIDUAL_COMMITS_TOPIC
    with closing(GroupOffsets(kafka, arguments.group, topic)) as offsets:
        if to is not None:
            _reset(arguments, offsets, to)
        elif arguments.action == "drop":
            _drop(arguments, offsets)
        else:
            known = offsets.snapshot()
            offsets.check_known(known)
            _show(kafka, arguments, known.committed())
    return 0


def _reset(arguments: argparse.Namespace, offsets: GroupOffsets, to: ResetTo) -> None:
    is_dry_run = arguments.dry_run
    reset = offsets.reset(to, topic=arguments.topic, is_dry_run=is_dry_run)
    if arguments.json:
        rows = [
            {"topic": tp.topic, "partition": tp.partition, "offset": offset, "dry_run": is_dry_run}
            for tp, offset in sorted(reset.items())
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    starts = "would start" if is_dry_run else "starts"
    for partition, offset in sorted(reset.items()):
        sys.stdout.write(f"{partition}: {starts} at offset {offset}\n")
    if is_dry_run:
        sys.stdout.write(
            "nothing was changed (--dry-run). A reset also voids what the group has committed "
            "above its stable offsets in these partitions\n"
        )


def _drop(arguments: argparse.Namespace, offsets: GroupOffsets) -> None:
    count = offsets.drop(topic=arguments.topic, is_dry_run=arguments.dry_run)
    deleted = "would be deleted" if arguments.dry_run else "deleted"
    sys.stdout.write(f"{count} records of group {arguments.group} {deleted}\n")


def _show(
    kafka: KafkaConfig,
    arguments: argparse.Namespace,
    found: Mapping[TopicPartition, OffsetAndMetadata],
) -> None:
    wanted = {tp: each for tp, each in found.items() if arguments.topic in {None, tp.topic}}
    with closing(Cluster(kafka)) as cluster:
        logs = log_bounds(cluster, wanted, lambda error: sys.stderr.write(f"warning: {error}\n"))
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
