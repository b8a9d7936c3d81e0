"""``kshare checkpoint drop-ranges``: sets a stopped query back to its stable offsets."""

import argparse
import sys
import time
from typing import Final

from kshare.monitor.drop_ranges import Dropped, drop_ranges
from kshare.monitor.offset_log import OffsetLog

__all__ = ["run"]

_RECENT_SECONDS: Final = 60.0


def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code."""
    age = time.time() - OffsetLog.open(arguments.directory).written_at
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
    if age < _RECENT_SECONDS:
        sys.stderr.write(
            f"warning: the query wrote its checkpoint {max(age, 0):.0f} s ago. One "
            "that still runs goes on from its memory, and writes ranges again: stop it, and repeat "
            "the command\n"
        )
    return 0


def _text(dropped: Dropped) -> str:
    again = "an unknown number of" if dropped.again is None else f"at most {dropped.again:,}"
    where = "its earliest offset" if dropped.stable is None else f"{dropped.stable:,}"
    return f"{dropped.topic_partition}: back at {where}, {again} records come again"
