"""``kshare top``: the ranges of a query or a group as they move."""

import argparse
import json
import sys
import time

from kshare.cli.live.look import looker
from kshare.cli.live.screen import SORTS, View
from kshare.cli.live.snapshot import as_json
from kshare.cli.live.terminal import can_be_full_screen, follow, full_screen, is_ascii, show
from kshare.cli.live.watch import Latest, Watch

__all__ = ["run"]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code.

    Raises:
        SystemExit: A group without a cluster (code 2).
    """
    # With --once, only the second look has speeds to print.
    on_look = _print_json if arguments.json and not arguments.once else _ignore
    watch = Watch(looker(parser, arguments), arguments.interval, on_look)
    view = View(
        sort=next(key for key, (name, _) in SORTS.items() if name == arguments.sort),
        is_ascii=is_ascii(sys.stdout),
        interval=arguments.interval,
    )
    try:
        if arguments.once:
            return _once(watch, view, is_json=arguments.json)
        if arguments.json:
            while True:
                time.sleep(arguments.interval)
                watch.again()
        if can_be_full_screen():
            full_screen(watch, view)
        else:
            follow(watch, view)
    finally:
        watch.close()
    return 0


def _once(watch: Watch, view: View, *, is_json: bool) -> int:
    """Print what two looks say; the code is 1 if the second failed."""
    time.sleep(view.interval or 0.0)
    latest = watch.again()
    if is_json:
        _print_json(latest)
    else:
        show(watch, view)
    return 0 if latest.fault is None else 1


def _print_json(latest: Latest) -> None:
    sys.stdout.write(json.dumps(as_json(latest.snapshot, fault=latest.fault)) + "\n")
    sys.stdout.flush()


def _ignore(_: Latest) -> None:
    pass
