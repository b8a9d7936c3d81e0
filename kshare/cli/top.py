"""``kshare top``: the ranges of a query or a group as they move, full screen or block by block.

Keys: those of :data:`~kshare.cli.live.screen.SORTS`, ``r`` (reversed), arrows and page keys, ``q``.
"""

import argparse
import json
import os
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TextIO

from kshare.cli.live.screen import SORTS, Line, View, render
from kshare.cli.live.snapshot import as_json
from kshare.cli.live.watch import Latest, Watch, looker
from kshare.cli.output import complain, printable

if TYPE_CHECKING:
    import curses

__all__ = ["can_be_full_screen", "follow", "full_screen", "is_ascii", "key_pressed", "run", "show"]

_KEYS: Final = "  ".join(f"{key} {name}" for key, (name, _) in SORTS.items())
FOOTER: Final = f"q quit  sort: {_KEYS}  r reversed"
_KEY_SECONDS: Final = 0.1


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code.

    Raises:
        SystemExit: A group without a cluster (code 2).
    """
    # With --once, only the second look has speeds to print.
    prints = arguments.json and not arguments.once
    on_look = _print_json if prints else lambda _: None
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


def is_ascii(stream: TextIO) -> bool:
    """True if a stream cannot take the characters of bars."""
    try:
        "█".encode(stream.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return True
    return False


def can_be_full_screen() -> bool:
    """True if input and output are a terminal that can move its cursor."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        import curses  # noqa: PLC0415 - some Pythons are built without

        curses.setupterm(os.environ.get("TERM", "dumb"), sys.stdout.fileno())
    except (ImportError, ValueError) as error:
        complain(f"no full screen: {error}")
        return False
    except curses.error:
        return False
    return curses.tigetstr("cup") is not None and curses.tigetstr("clear") is not None


def show(watch: Watch, view: View) -> None:
    """Print the snapshot once."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = render(watch.latest, view, width=width)
    text = "".join(f"{printable(line.text)}\n" for line in lines)
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def follow(watch: Watch, view: View) -> None:
    """Print each snapshot, until the user ends it."""
    interval = view.interval or 0.0
    show(watch, view)
    while True:
        time.sleep(interval)
        watch.again()
        sys.stdout.write("\n")
        show(watch, view)


def full_screen(watch: Watch, view: View) -> None:
    """Fill the screen, and listen to keys, until ``q``."""
    import curses  # noqa: PLC0415 - some Pythons are built without

    watch.start()
    curses.wrapper(_loop, watch, view)


def _loop(window: "curses.window", watch: Watch, view: View) -> None:
    import curses  # noqa: PLC0415 - as above

    with suppress(curses.error):  # this terminal cannot hide it
        curses.curs_set(0)
    red = _red()
    styles = {
        "title": curses.A_BOLD,
        "head": curses.A_REVERSE,
        "fault": curses.A_BOLD | red,
        "warning": curses.A_BOLD,
        "outlier": red,
    }
    window.timeout(int(_KEY_SECONDS * 1000))
    drawn: Any = None
    while True:
        height, width = window.getmaxyx()
        shown = (watch.latest, view, height, width)
        if shown != drawn:
            lines = render(watch.latest, view, max(height - 1, 1), max(width - 1, 1))
            _draw(window, [*lines[: height - 1]], styles)
            drawn = shown
        pressed = window.getch()
        if pressed == -1:
            continue
        changed = key_pressed(view, _name(pressed), height // 2)
        if changed is None:
            return
        last = max(len(watch.latest.snapshot.ranges) - 1, 0)
        view = replace(changed, first=min(changed.first, last))


def _red() -> int:
    """Red, on a terminal that has colours."""
    import curses  # noqa: PLC0415 - as above

    if not curses.has_colors():
        return 0
    with suppress(curses.error):
        curses.use_default_colors()
        curses.init_pair(1, curses.COLOR_RED, -1)
        return curses.color_pair(1)
    return 0


def _draw(window: "curses.window", lines: list[Line], styles: dict[str, int]) -> None:
    import curses  # noqa: PLC0415 - as above

    height, width = window.getmaxyx()
    window.erase()
    footer = Line(FOOTER, "head")
    for row, line in [*enumerate(lines), (height - 1, footer)]:
        text = printable(line.text)[: max(width - 1, 0)]
        try:
            window.addstr(row, 0, text, styles.get(line.style, curses.A_NORMAL))
        except curses.error:  # the window has shrunk meanwhile
            break
    window.refresh()


def _name(pressed: int) -> str:
    """A key by its name: a character, or such as ``KEY_UP``."""
    import curses  # noqa: PLC0415 - as above

    return curses.keyname(pressed).decode("ascii", "replace")


def key_pressed(view: View, name: str, page: int) -> View | None:
    """Apply the effect of a key.

    Args:
        view: What is shown.
        name: The key, as curses names it.
        page: How many ranges a page key scrolls.

    Returns:
        What is shown now; None if the user wants to end.
    """
    steps = {"KEY_UP": -1, "KEY_DOWN": 1, "KEY_PPAGE": -page, "KEY_NPAGE": page}
    if name in {"q", "Q", "^["}:
        return None
    if name in SORTS:
        return replace(view, sort=name, first=0)
    if name == "r":
        return replace(view, is_reversed=not view.is_reversed)
    if name in steps:
        return replace(view, first=max(view.first + steps[name], 0))
    if name == "KEY_HOME":
        return replace(view, first=0)
    return view
