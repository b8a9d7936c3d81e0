"""``kshare check-history``: judge what Kafka consumers have done, by Jepsen's anomalies.

Guarantees: exit code 0 if there is no anomaly, 1 if there is one, 2 if a line cannot be read.
"""

import argparse
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from kshare.cli.output import complain, counted, print_json, say
from kshare.errors import HistoryFileError
from kshare.testing.history import KINDS, Anomaly, History, check_history
from kshare.testing.history.history_file import HistoryReader

__all__ = ["run"]

_SHOWN = 20


def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code."""
    reader = HistoryReader()
    for name in arguments.files:
        try:
            with (
                nullcontext(sys.stdin) if name == "-" else Path(name).open(encoding="utf-8")
            ) as file:
                reader.read("<stdin>" if name == "-" else Path(name).name, file)
        except (OSError, UnicodeDecodeError) as error:
            complain(f"kshare check-history: {name} cannot be read: {error}")
            return 2
    try:
        history = reader.history(
            has_order=not arguments.no_order, is_complete=not arguments.partial
        )
    except HistoryFileError as error:
        complain(f"kshare check-history: {error}")
        return 2
    found = check_history(history)
    if arguments.json:
        rows = [{"kind": each.kind, "text": each.text} for each in found]
        print_json(rows)
    else:
        _show(history, found)
    return 1 if found else 0


def _show(history: History, found: list[Anomaly]) -> None:
    counts = Counter(each.kind for each in found)
    received = sum(1 for _ in history.deliveries())
    written = "unknown" if history.sent is None else f"{len(history.sent):,}"
    say(
        f"{counted(received, 'record')} received by "
        f"{counted(len(history.processes), 'process', 'processes')}; "
        f"{written} written; {counted(len(found), 'anomaly', 'anomalies')}"
    )
    for kind, meaning in KINDS.items():
        if counts[kind]:
            say(f"{counts[kind]:,} x {kind} ({meaning}):")
            of_kind = [each.text for each in found if each.kind == kind]
            for text in of_kind[:_SHOWN]:
                say(f"  {text}")
            if len(of_kind) > _SHOWN:
                say(f"  and {len(of_kind) - _SHOWN:,} more")
