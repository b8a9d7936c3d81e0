"""``kshare status``: how far a query is, from its checkpoint and the broker.

Guarantees: nothing is changed.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import closing

from kshare.cli.connection import is_given, kafka_config, source_options
from kshare.cli.show import as_json, as_text, slowest_json, slowest_text
from kshare.cluster.cluster import Cluster
from kshare.cluster.log_bounds import log_bounds
from kshare.cluster.parked_keys import ParkedInfo, ParkedKeys
from kshare.core.progress import TopicPartition
from kshare.monitor.plot import draw
from kshare.monitor.slowest import SlowestRange, slowest_range, waiting_keys
from kshare.monitor.status import Checkpoint, Status, describe, read_checkpoint

__all__ = ["run"]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code.

    Raises:
        SystemExit: ``--slowest`` is given without a broker (code 2).
    """
    if arguments.slowest and not is_given(arguments):
        parser.error("--slowest reads the waiting records: give --bootstrap-servers")
    checkpoint = read_checkpoint(arguments.checkpoint)
    logs, parked = _ask(checkpoint, arguments) if is_given(arguments) else (None, None)
    status = describe(checkpoint, logs, parked)
    slowest = _slowest(status, arguments) if arguments.slowest else None
    if arguments.plot is not None:
        draw(status, arguments.plot)
    if arguments.json:
        fields = as_json(status)
        if arguments.slowest:
            fields["slowest"] = None if slowest is None else slowest_json(slowest)
        sys.stdout.write(json.dumps(fields, indent=2) + "\n")
    else:
        sys.stdout.write(as_text(status))
        if arguments.slowest:
            sys.stdout.write("\n" + slowest_text(slowest))
    return 0


def _slowest(status: Status, arguments: argparse.Namespace) -> SlowestRange | None:
    """The keys of the range that is furthest behind; None if no range is behind others."""
    found = slowest_range(status)
    if found is None:
        return None
    # What is gone meanwhile is no fault of who looks.
    return waiting_keys(*found, source_options(arguments, columns="key", failondataloss="false"))


def _ask(
    checkpoint: Checkpoint, arguments: argparse.Namespace
) -> tuple[Mapping[TopicPartition, tuple[int, int]], Mapping[tuple[str, bytes], ParkedInfo]]:
    """The logs and the parked keys, as the broker has them."""
    kafka = kafka_config(arguments)
    wanted = {partition for source in checkpoint.sources for partition in source.done}
    with closing(Cluster(kafka)) as cluster:
        logs = log_bounds(cluster, wanted, lambda error: sys.stderr.write(f"warning: {error}\n"))
    with closing(ParkedKeys(kafka)) as parked:
        return logs, parked.parked()
