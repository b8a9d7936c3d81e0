"""``kshare status``: how far a query is, from its checkpoint and the broker.

Guarantees: nothing is changed.

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

    from kshare.cluster.parked_keys import ParkedInfo
    from kshare.core.progress import TopicPartition
    from kshare.monitor.status import Checkpoint

__all__ = ["add_to"]


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the parser of the program."""
    status = commands.add_parser(
        "status",
        help="positions, lag, gaps and parked keys of a query, running or not",
        description="Show how far a query is, from its checkpoint: for each partition the stable "
        "offset (all below it is processed), the front (nothing above it is), and its ranges of "
        "key hashes. With a broker: lag and parked keys, too. Lag is in offsets, so at most so "
        "many records.",
    )
    status.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="the query's checkpointLocation"
    )
    status.add_argument("--json", action="store_true", help="for programs")
    status.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw offsets x hash space into a .png or .svg (needs the extra: kshare[plot])",
    )
    add_connection(status)
    status.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from kshare.cli.show import as_json, as_text  # noqa: PLC0415
    from kshare.monitor.status import describe, read_checkpoint  # noqa: PLC0415

    checkpoint = read_checkpoint(arguments.checkpoint)
    logs, parked = _ask(checkpoint, arguments) if is_given(arguments) else (None, None)
    status = describe(checkpoint, logs, parked)
    if arguments.plot is not None:
        from kshare.monitor.plot import draw  # noqa: PLC0415

        draw(status, arguments.plot)
    if arguments.json:
        sys.stdout.write(json.dumps(as_json(status), indent=2) + "\n")
    else:
        sys.stdout.write(as_text(status))
    return 0


def _ask(
    checkpoint: "Checkpoint", arguments: argparse.Namespace
) -> "tuple[Mapping[TopicPartition, tuple[int, int]], Mapping[tuple[str, bytes], ParkedInfo]]":
    """The logs and the parked keys, as the broker has them."""
    from kshare.cluster.cluster import Cluster  # noqa: PLC0415
    from kshare.cluster.parked_keys import ParkedKeys  # noqa: PLC0415
    from kshare.errors import UnknownTopicError  # noqa: PLC0415
    from kshare.options import Subscribe  # noqa: PLC0415

    kafka = kafka_config(arguments)
    wanted = {place for source in checkpoint.sources for place in source.done}
    there: set[TopicPartition] = set()
    with closing(Cluster(kafka)) as cluster:
        for topic in sorted({place.topic for place in wanted}):
            try:
                there.update(cluster.partitions(Subscribe((topic,))))
            except UnknownTopicError as error:
                sys.stderr.write(f"warning: {error}\n")
        first, end = cluster.earliest(wanted & there), cluster.latest(wanted & there)
    with closing(ParkedKeys(kafka)) as parked:
        return {place: (first[place], end[place]) for place in first}, parked.parked()
