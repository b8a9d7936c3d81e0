"""Shows a :class:`~kshare.cli.live.watch.Watch` in a terminal: full screen, or block by block.

Keys: those of :data:`~kshare.cli.live.screen.SORTS`, ``r`` (reversed), arrows and page keys, ``q``.
"""

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TextIO

from kshare.cli.live.screen import SORTS, Line, View, render
from kshare.cli.live.watch import Watch
from kshare.cli.table import printable

if TYPE_CHECKING:
    import curses

__all__ = ["can_be_full_screen", "follow", "full_screen", "is_ascii", "key_pressed", "show"]

_KEYS: Final = "  ".join(f"{key} {name}" for key, (name, _) in SORTS.items())
FOOTER: Final = f"q quit  sort: {_KEYS}  r reversed"
_KEY_SECONDS: Final = 0.1


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
        sys.stderr.write(f"no full screen: {error}\n")
        return False
    except curses.error:
        return False
    return curses.tigetstr("cup") is not None and curses.tigetstr("clear") is not None


def show(watch: Watch, view: View) -> None:
    """Print the snapshot once."""
    text = "".join(f"{printable(line.text)}\n" for line in render(watch.latest, view))
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

    styles = {"title": curses.A_BOLD, "head": curses.A_REVERSE, "fault": curses.A_BOLD}
    with suppress(curses.error):  # this terminal cannot hide it
        curses.curs_set(0)
    window.timeout(int(_KEY_SECONDS * 1000))
    drawn: Any = None
    while True:
        height, width = window.getmaxyx()
        shown = (watch.latest, view, height, width)
        if shown != drawn:
            lines = render(watch.latest, view, max(height - 1, 1))
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
