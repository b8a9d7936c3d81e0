"""``kshare offsets``: what a key-shared consumer group has committed; reset, drop.

Guarantees: nothing is changed while a member of the group is alive.

Cost: argparse; the rest is imported when it runs.
"""

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kshare.cli.connection import add_connection, is_given, kafka_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kshare.core.progress import TopicPartition
    from kshare.group.model import OffsetAndMetadata
    from kshare.group.offsets import ResetTo
    from kshare.monitor.status import PartitionStatus
    from kshare.options import KafkaConfig

__all__ = ["add_to"]

_WANTED = 'wanted earliest, latest, stable, or offsets such as {"orders": {"0": 123}}'


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the parser of the program."""
    offsets = commands.add_parser(
        "offsets",
        help="stable offsets and individual commits of a consumer group; reset, drop",
        description="Show what a consumer group has committed: for each partition the stable "
        "offset (all below it is processed), what is processed above it, and the lag. `reset` "
        "lets the group start elsewhere, and voids its individual commits. `drop` deletes the "
        "group's records from the log, if they cannot be read any more; the stable offsets stay. "
        "Both are refused while a member is alive.",
    )
    offsets.add_argument(
        "action", nargs="?", choices=("list", "reset", "drop"), default="list", help="default: list"
    )
    offsets.add_argument("--group", required=True, help="id of the group")
    offsets.add_argument(
        "--to",
        type=_reset_to,
        metavar="WHERE",
        help="for reset: earliest, latest, stable, or JSON: the offsets of some partitions",
    )
    offsets.add_argument("--json", action="store_true", help="for programs")
    offsets.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw offsets x hash space into a .png or .svg (needs the extra: kshare[plot])",
    )
    offsets.add_argument("--topic", help="list: only partitions of this topic")
    offsets.add_argument(
        "--log-topic", help="the log of individual commits (individual.commit.topic)"
    )
    add_connection(offsets)

    def run(arguments: argparse.Namespace) -> int:
        if not is_given(arguments):
            offsets.error("which cluster? Give --bootstrap-servers, or --kafka-config")
        if (arguments.action == "reset") != (arguments.to is not None):
            offsets.error("reset needs --to, and only reset takes it")
        return _run(kafka_config(arguments), arguments)

    offsets.set_defaults(run=run)


def _run(kafka: "KafkaConfig", arguments: argparse.Namespace) -> int:
    from kshare.cluster.topics import INDIVIDUAL_COMMITS_TOPIC  # noqa: PLC0415
    from kshare.group.offsets import GroupOffsets  # noqa: PLC0415

    topic = arguments.log_topic or INDIVIDUAL_COMMITS_TOPIC
    with closing(GroupOffsets(kafka, arguments.group, topic)) as offsets:
        if arguments.action == "reset":
            for partition, offset in sorted(offsets.reset(_by_partition(arguments.to)).items()):
                sys.stdout.write(f"{partition}: starts at offset {offset}\n")
        elif arguments.action == "drop":
            count = offsets.drop()
            sys.stdout.write(f"{count} records of group {arguments.group} deleted\n")
        else:
            found = offsets.committed()
            _show(kafka, arguments, found)
    return 0


def _show(
    kafka: "KafkaConfig",
    arguments: argparse.Namespace,
    found: "Mapping[TopicPartition, OffsetAndMetadata]",
) -> None:
    from kshare.cli.show import partition_text  # noqa: PLC0415
    from kshare.monitor.status import partition_status  # noqa: PLC0415

    wanted = {tp: each for tp, each in found.items() if arguments.topic in {None, tp.topic}}
    logs = _logs(kafka, wanted)
    shown = {tp: partition_status(tp, each.progress, logs.get(tp)) for tp, each in wanted.items()}
    if arguments.plot is not None:
        from kshare.monitor.plot import draw_partitions  # noqa: PLC0415

        draw_partitions(f"group {arguments.group}", list(shown.values()), arguments.plot)
    if arguments.json:
        listed = [_as_json(shown[tp], each) for tp, each in wanted.items()]
        sys.stdout.write(json.dumps(listed, indent=2) + "\n")
    elif not shown:
        sys.stdout.write(f"group {arguments.group} has committed nothing\n")
    else:
        sys.stdout.write("".join(partition_text(each) for each in shown.values()))


def _logs(
    kafka: "KafkaConfig", partitions: "Mapping[TopicPartition, OffsetAndMetadata]"
) -> "dict[TopicPartition, tuple[int, int]]":
    """First offset and end of the partitions that are there still."""
    from kshare.cluster.cluster import Cluster  # noqa: PLC0415
    from kshare.errors import UnknownTopicError  # noqa: PLC0415
    from kshare.options import Subscribe  # noqa: PLC0415

    there: set[TopicPartition] = set()
    with closing(Cluster(kafka)) as cluster:
        for topic in sorted({tp.topic for tp in partitions}):
            try:
                there.update(cluster.partitions(Subscribe((topic,))))
            except UnknownTopicError as error:
                sys.stderr.write(f"warning: {error}\n")
        asked = there & partitions.keys()
        first, end = cluster.earliest(asked), cluster.latest(asked)
    return {tp: (first[tp], end[tp]) for tp in first}


def _as_json(shown: "PartitionStatus", committed: "OffsetAndMetadata") -> dict[str, Any]:
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


def _reset_to(text: str) -> Any:
    if text in {"earliest", "latest", "stable"}:
        return text
    try:
        parsed = json.loads(text)
        offsets = {
            (str(topic), int(number)): offset
            for topic, of_topic in parsed.items()
            for number, offset in of_topic.items()
        }
    except (ValueError, AttributeError):
        raise argparse.ArgumentTypeError(f"{text!r}: {_WANTED}") from None
    if not offsets or any(type(each) is not int or each < 0 for each in offsets.values()):
        raise argparse.ArgumentTypeError(f"{text!r}: {_WANTED}")
    return offsets


def _by_partition(to: Any) -> "ResetTo":
    from kshare.core.progress import TopicPartition  # noqa: PLC0415

    return to if isinstance(to, str) else {TopicPartition(*tp): at for tp, at in to.items()}  # type: ignore[return-value]
