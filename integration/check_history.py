"""Judge what Kafka consumers have done: ``python -m integration.check_history FILE``.

The anomalies are Jepsen's. FILE has JSON lines, as docs/design/histories.md says, or what Kafka's
verifiable clients print with --verbose (then a file for each).

Guarantees: exit code 0 if there is no anomaly, 1 if there is one, 2 if a line cannot be read.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from integration.history import KINDS, Anomaly, History, check_history
from integration.history.history_file import HistoryFileError, HistoryReader
from kshare.cli.output import Answer, complain, counted, line_of, show

__all__ = ["main"]

_SHOWN = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    arguments = _arguments(argv)
    reader = HistoryReader()
    for name in arguments.files:
        try:
            with (
                nullcontext(sys.stdin) if name == "-" else Path(name).open(encoding="utf-8")
            ) as file:
                reader.read("<stdin>" if name == "-" else Path(name).name, file)
        except (OSError, UnicodeDecodeError) as error:
            complain(f"check_history: {name} cannot be read: {error}")
            return 2
    try:
        history = reader.history(
            has_order=not arguments.no_order, is_complete=not arguments.partial
        )
    except HistoryFileError as error:
        complain(f"check_history: {error}")
        return 2
    found = check_history(history)
    rows = [{"kind": each.kind, "text": each.text} for each in found]
    text = "".join(map(line_of, _lines(history, found)))
    show(Answer(rows, text), is_json=arguments.json)
    return 1 if found else 0


def _lines(history: History, found: list[Anomaly]) -> Iterator[str]:
    counts = Counter(each.kind for each in found)
    received = sum(1 for _ in history.deliveries())
    written = "unknown" if history.sent is None else f"{len(history.sent):,}"
    yield (
        f"{counted(received, 'record')} received by "
        f"{counted(len(history.processes), 'process', 'processes')}; "
        f"{written} written; {counted(len(found), 'anomaly', 'anomalies')}"
    )
    for kind, meaning in KINDS.items():
        if counts[kind]:
            yield f"{counts[kind]:,} x {kind} ({meaning}):"
            of_kind = [each.text for each in found if each.kind == kind]
            for text in of_kind[:_SHOWN]:
                yield f"  {text}"
            if len(of_kind) > _SHOWN:
                yield f"  and {len(of_kind) - _SHOWN:,} more"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    check = argparse.ArgumentParser(
        prog="python -m integration.check_history",
        description="Judge what consumers have received, by Jepsen's anomalies, key by key. Exit "
        "code 1 if there is an anomaly, 2 if a line cannot be read.",
    )
    check.add_argument("files", nargs="+", metavar="FILE", help="-: read standard input")
    check.add_argument(
        "--partial",
        action="store_true",
        help="consumers were ended early: what they might still have received is not lost",
    )
    check.add_argument(
        "--no-order", action="store_true", help="the order of keys is not to be kept"
    )
    check.add_argument("--json", action="store_true", help="for programs")
    return check.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
