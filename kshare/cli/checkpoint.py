"""``kshare checkpoint drop-ranges``: sets a stopped query back to its stable offsets.

Cost: argparse; the rest is imported when it runs.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kshare.monitor.drop_ranges import Dropped

__all__ = ["add_to"]


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the parser of the program."""
    checkpoint = commands.add_parser(
        "checkpoint",
        help="change a stopped query's checkpoint",
        description="Change the checkpoint of a query that does not run.",
    )
    actions = checkpoint.add_subparsers(required=True, metavar="ACTION", dest="action")
    drop = actions.add_parser(
        "drop-ranges",
        help="back to the stable offsets: no ranges any more, at least once",
        description="Set each partition back to its stable offset, below which all is processed. "
        "What was processed above it is forgotten, so these records come again: at least once. "
        "Spark's own Kafka source can then go on from the checkpoint, too. Stop the query first. "
        "The files that are replaced are kept beside the others.",
    )
    drop.add_argument("directory", metavar="DIR", help="the query's checkpointLocation")
    drop.set_defaults(run=_drop)


def _drop(arguments: argparse.Namespace) -> int:
    from kshare.monitor.drop_ranges import drop_ranges  # noqa: PLC0415

    result = drop_ranges(arguments.directory)
    log = result.log
    if not result.dropped:
        sys.stdout.write(f"{log.directory}: nothing to drop, no partition has ranges\n")
        return 0
    sys.stdout.write(f"{log.directory}: set back to the stable offsets\n")
    for dropped in result.dropped:
        sys.stdout.write(f"  {_text(dropped)}\n")
    known = [dropped.again for dropped in result.dropped if dropped.again is not None]
    more = " and those of ranges that cannot be read" if len(known) < len(result.dropped) else ""
    sys.stdout.write(f"at most {sum(known):,} records come again{more}\n")
    names = " and ".join(f"offsets/{batch}" for batch in sorted(result.replaced))
    sys.stdout.write(f"{names} as before: {result.backup}\n")
    return 0


def _text(dropped: "Dropped") -> str:
    again = "an unknown number of" if dropped.again is None else f"at most {dropped.again:,}"
    return f"{dropped.topic_partition}: back at {dropped.stable:,}, {again} records come again"
