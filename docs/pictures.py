"""Draw the pictures of the README and the docs: ``make pictures``, or ``python docs/pictures.py``.

Each picture is a function. The same matplotlib draws the same bytes. ``slow-key.svg`` is drawn by
the code of ``kshare status --plot``, from a checkpoint that ``bench/slow_key_checkpoint.py``
recorded. From the same come ``top.svg``, what ``kshare top`` shows, and ``ui.png``, the page of
``kshare ui`` in a browser.
"""

import contextlib
import itertools
import json
import os
import runpy
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kshare.cli.live.screen import View, render
from kshare.cli.live.snapshot import as_json
from kshare.cli.live.watch import Latest, Watch
from kshare.cli.ui import PageServer
from kshare.kafka.parked_keys import ParkedInfo
from kshare.monitor.plot import draw
from tests.support.looks import ScriptedLooker, recorded, recorded_statuses

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "pictures"

# The colours of Okabe and Ito, which colour-blind readers tell apart.
BLUE, SKY, GREEN, ORANGE, RED = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
INK, GREY, PALE, SAND = "#1f2933", "#7b8794", "#e4e7eb", "#f1ece2"

STYLE: Any = {
    "font.family": "DejaVu Sans",  # matplotlib brings it: the same letters on every machine
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "white",  # opaque, so that it can be read on a dark page too
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "kshare",
}


# -- two ways to cut a partition -------------------------------------------------------------------

KEYS = 8
OFFSETS = 24
ONE_KEY = 5
KEY_OF_OFFSET = (3, 5, 0, 6, 5, 1, 7, 2, 5, 4, 1, 3, 6, 0, 5, 2, 7, 4, 0, 3, 5, 6, 5, 1)


def cut() -> Figure:
    """Spark cuts a partition by offset, kshare by key hash."""
    figure = Figure(figsize=(10, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _records(left, 'format("kafka"), minPartitions=4', "one key in four tasks at once")
    _records(right, 'format("kshare"), minPartitions=4', "each key in one task, in order")
    tints = (SKY, GREEN, ORANGE, GREY)
    for task, tint in enumerate(tints):
        width, height = OFFSETS / 4, KEYS / 4
        left.add_patch(_band(task * width, 0, width, KEYS, tint))
        left.text((task + 0.5) * width, KEYS + 0.12, f"task {task + 1}", ha="center", va="bottom")
        right.add_patch(_band(0, task * height, OFFSETS, height, tint))
        right.text(OFFSETS + 0.3, (task + 0.5) * height, f"task {task + 1}", va="center")
    left.set_ylabel("key hash")
    return figure


def _records(axes: Axes, title: str, note: str) -> None:
    axes.set_title(title, fontsize=13, fontweight="bold", family="DejaVu Sans Mono", pad=26)
    axes.set_xlim(0, OFFSETS)
    axes.set_ylim(0, KEYS)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("offset")
    axes.text(OFFSETS / 2, -1.3, note, ha="center", va="center", fontsize=13, color=RED)
    for offset, key in enumerate(KEY_OF_OFFSET):
        is_one = key == ONE_KEY
        axes.plot(
            offset + 0.5,
            key + 0.5,
            marker="o",
            markersize=11 if is_one else 7,
            color=RED if is_one else INK,
            alpha=1 if is_one else 0.55,
            linestyle="",
        )
    mine = [offset + 0.5 for offset, key in enumerate(KEY_OF_OFFSET) if key == ONE_KEY]
    axes.plot(mine, [ONE_KEY + 0.5] * len(mine), color=RED, linewidth=1.5)


def _band(x: float, y: float, width: float, height: float, colour: str) -> Rectangle:
    return Rectangle((x, y), width, height, facecolor=colour, alpha=0.28, edgecolor="white", lw=2)


# -- the figures -----------------------------------------------------------------------------------


def figures() -> Figure:
    """The chart of ``figures.toml``."""
    data = tomllib.loads((DOCS / "figures.toml").read_text())
    rows = data["figure"]
    figure = Figure(figsize=(10, 0.95 * len(rows) + 0.9), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(rows):
        top = -number
        largest = max(row["peer_value"], row["kshare_value"])
        bars = (
            (0.19, row["peer"], row["peer_value"], "#9aa5b1"),
            (-0.19, "kshare", row["kshare_value"], BLUE),
        )
        for shift, name, value, colour in bars:
            axes.barh(top + shift, value / largest, height=0.34, color=colour)
            axes.text(
                value / largest + 0.012,
                top + shift,
                f"{value:,}  {name}" + (f"  ({row['ratio']})" if name == "kshare" else ""),
                va="center",
                fontsize=10.5,
                fontweight="bold" if name == "kshare" else "normal",
            )
        axes.text(-0.02, top, f"{row['what']}\n{row['unit']}", va="center", ha="right")
    axes.set_xlim(-0.02, 1.42)
    axes.set_ylim(0.55 - len(rows), 0.55)
    axes.axis("off")
    figure.supxlabel(data["machine"], fontsize=9.5, color=GREY)
    return figure


# -- the progress of a partition -------------------------------------------------------------------


def progress() -> Figure:
    """The processed rectangles of a partition, and what the next batch reads."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axes = figure.subplots()
    stable, end = 30, 100
    # Lowest and highest hash, position, end of the next slice.
    ranges = (
        (0, 25, 62, 84),
        (25, 50, 55, 78),
        (50, 53, 30, 33),
        (53, 75, 70, 92),
        (75, 100, 48, 66),
    )
    axes.set_facecolor(SAND)
    axes.add_patch(Rectangle((0, 0), stable, 100, color=BLUE))
    for lo, hi, position, slice_end in ranges:
        axes.add_patch(
            Rectangle((stable, lo), position - stable, hi - lo, fc=SKY, ec="white", lw=1)
        )
        axes.add_patch(
            Rectangle(
                (position, lo),
                slice_end - position,
                hi - lo,
                facecolor="#fbe3b0",
                edgecolor=ORANGE,
                hatch="///",
                linewidth=1.2,
            )
        )
    axes.axvline(stable, color=INK, linewidth=1.5)
    _label(axes, 15, 50, "processed", "white")
    _label(axes, 39, 88, "individual\ncommits", INK)
    _label(axes, 73, 12, "next slice", INK)
    _label(axes, 92, 88, "pending", INK)
    axes.annotate(
        "one slow key,\nin a range of its own",
        xy=(33.2, 51.5),
        xytext=(89, 35),
        va="center",
        ha="center",
        bbox={"facecolor": "white", "edgecolor": GREY, "boxstyle": "round,pad=0.35"},
        arrowprops={
            "arrowstyle": "-|>",
            "color": INK,
            "connectionstyle": "angle,angleA=90,angleB=0,rad=0",
        },
    )
    axes.text(stable, 101.5, "stable offset", ha="center", va="bottom")
    axes.text(70, 101.5, "front", ha="center", va="bottom")
    axes.plot([70, 70], [75, 101], color=INK, linewidth=1, linestyle=":")
    axes.text(end, 101.5, "end of the log", ha="right", va="bottom")
    axes.set_xlim(0, end)
    axes.set_ylim(0, 100)
    axes.set_xticks([])
    axes.set_yticks([0, 25, 50, 75, 100], ["0", "¼", "½", "¾", "1"])
    axes.set_xlabel("offset")
    axes.set_ylabel("key hash, as a part of the hash space")
    return figure


def _label(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    box = None if colour == "white" else {"facecolor": "white", "alpha": 0.75, "edgecolor": "none"}
    axes.text(x, y, text, color=colour, ha="center", va="center", fontsize=12, bbox=box)


# -- sequences of messages -------------------------------------------------------------------------


def sequence(name: str) -> Figure:
    """A diagram of ``sequences.toml``.

    A message is sender, receiver and text. If both are the same, it is a note on that lifeline.
    """
    data = tomllib.loads((DOCS / "sequences.toml").read_text())[name]
    messages = data["messages"]
    figure = Figure(figsize=(10, 0.46 * len(messages) + 1.3), layout="constrained")
    axes = figure.subplots()
    position = {line: 2.4 * number for number, line in enumerate(data["lifelines"])}
    bottom = len(messages) + 0.6
    for line, x in position.items():
        axes.plot([x, x], [0, bottom], color=PALE, linewidth=2, zorder=0)
        axes.text(
            x,
            -0.35,
            line,
            ha="center",
            va="center",
            fontweight="bold",
            bbox={"facecolor": PALE, "edgecolor": GREY, "boxstyle": "round,pad=0.45"},
        )
    for number, (sender, receiver, said) in enumerate(messages, start=1):
        start, end = position[sender], position[receiver]
        text = f"{number}  {said}"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
        if start == end:
            box |= {"edgecolor": GREY, "pad": 4}
            axes.text(start, number, text, ha="center", va="center", fontsize=10, bbox=box)
            continue
        axes.annotate(
            "",
            xy=(end, number + 0.22),
            xytext=(start, number + 0.22),
            arrowprops={"arrowstyle": "-|>", "color": BLUE, "linewidth": 1.5, "shrinkA": 0},
        )
        middle = (start + end) / 2
        axes.text(middle, number + 0.1, text, ha="center", va="bottom", fontsize=10, bbox=box)
    axes.set_xlim(-1.1, max(position.values()) + 1.1)
    axes.set_ylim(bottom, -0.8)
    axes.axis("off")
    return figure


# -- a group beside plain consumers ----------------------------------------------------------------


def migration() -> Figure:
    """How a group goes from plain consumers to shared key ranges, and back."""
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 26)
    axes.axis("off")
    _box(axes, 1, 9, 22, 9, "plain consumers", PALE)
    _box(axes, 39, 9, 22, 9, "whole partitions,\nby range", SAND)
    _box(axes, 77, 9, 22, 9, "key ranges\nare shared", "#cdebdf")
    _arrow(axes, (24, 13.5), (38, 13.5), BLUE)
    axes.text(31, 17.5, "a kshare\nconsumer joins", ha="center", va="center", fontsize=10)
    _arrow(axes, (62, 16), (76, 16), BLUE)
    axes.text(69, 20.5, "the last plain\nconsumer leaves", ha="center", va="center", fontsize=10)
    _arrow(axes, (76, 11), (62, 11), BLUE)
    axes.text(69, 6.5, "a plain\nconsumer joins", ha="center", va="center", fontsize=10)
    return figure


# -- the part of a query that is measured ----------------------------------------------------------


def measured() -> Figure:
    """The part of a query whose time counts as that of a key range: all before a shuffle."""
    figure = Figure(figsize=(10, 4.3), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 43)
    axes.axis("off")
    seen = "seen: the range of the slow key reads less"
    _stages(axes, 25, ("read a\nkey range", "slow step"), ("window,\ncount",), seen, GREEN)
    unseen = "not seen: each batch waits for the slow key"
    _stages(axes, 2, ("read a\nkey range",), ("window,\ncount", "slow step"), unseen, RED)
    return figure


def _stages(
    axes: Axes, y: float, before: tuple[str, ...], after: tuple[str, ...], note: str, colour: str
) -> None:
    """The steps of a query before a shuffle, which are measured, and after it."""
    frame = FancyBboxPatch(
        (1, y - 1.5), 22 * len(before), 14, boxstyle="round,pad=0.3", fc="#f7f9fb", ec=BLUE, ls="--"
    )
    axes.add_patch(frame)
    axes.text(2.5, y + 10, "measured", va="center", color=BLUE, fontweight="bold")
    starts = [3 + 22 * number for number in range(len(before))]
    starts += [99 - 22 * number for number in range(len(after), 0, -1)]
    for x, step in zip(starts, before + after, strict=True):
        _box(axes, x, y, 17, 7.5, step, ORANGE if step == "slow step" else PALE)
    for x, following in itertools.pairwise(starts):
        _arrow(axes, (x + 17.5, y + 3.7), (following - 0.5, y + 3.7), BLUE)
    middle = (starts[len(before) - 1] + 17 + starts[len(before)]) / 2
    axes.text(middle, y + 6, "shuffle", ha="center", va="center", fontsize=10)
    axes.text(99, y + 10, note, ha="right", va="center", color=colour, fontsize=12)


# -- sharing on one host ---------------------------------------------------------------------------


def sharing() -> Figure:
    """Three tasks of one partition on one host fetch it once."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 44)
    axes.axis("off")
    _box(axes, 1, 14, 15, 13, "Kafka\norders-0", PALE)
    host = FancyBboxPatch((29, 1), 69, 42, boxstyle="round,pad=0.3", fc="#f7f9fb", ec=GREY, ls="--")
    axes.add_patch(host)
    axes.text(31, 40, "one host", va="center", fontweight="bold")
    tasks = ("hashes 0 to ⅓", "hashes ⅓ to ⅔", "hashes ⅔ to 1")
    for number, hashes in enumerate(tasks):
        text = f"task {number + 1}\n{hashes}"
        _box(axes, 32, 26.5 - 12 * number, 18, 9, text, "#cdebdf")
    _box(axes, 67, 33, 28, 7, "index: who has what", SAND)
    _box(axes, 67, 4, 28, 25, "", SAND)
    axes.text(81, 26, "chunks, in files without names", ha="center", va="center", fontsize=10)
    chunks = ("0 to 999, by task 1", "1000 to 1999, by task 3", "2000 ..., claimed by task 1")
    for number, text in enumerate(chunks):
        _box(axes, 68.5, 18 - 6 * number, 25, 4.6, text, "#cfe8f7", 10)
    _arrow(axes, (17, 20.5), (31.2, 20.5), BLUE)
    axes.text(22.6, 25, "each offset\nonce", ha="center", va="center", fontsize=10)
    _arrow(axes, (50.8, 31), (66.2, 36.5), GREY, "<|-|>")
    axes.text(57, 37, "look, claim", ha="center", va="center", fontsize=10)
    _arrow(axes, (50.8, 18), (66.2, 18), GREEN, "<|-|>")
    axes.text(58.5, 20.3, "share, read", ha="center", va="center", fontsize=10)
    return figure


def _box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    text: str,
    fill: str,
    size: int = 11,
) -> None:
    style = "round,pad=0.2,rounding_size=0.8"
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=fill, edgecolor=GREY)
    )
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)


def _arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    style: str = "-|>",
) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle=style, mutation_scale=16, color=colour, linewidth=2)
    )


# -- a query with a slow key -----------------------------------------------------------------------


def draw_slow_key(file: Path) -> None:
    """Draw what ``kshare status --plot`` draws of the recorded checkpoint."""
    recorded = json.loads((PICTURES / "slow-key.json").read_text())
    keys = {("orders", key.encode()): ParkedInfo(since="") for key in recorded["parked"]}
    file = file.resolve()
    with tempfile.TemporaryDirectory() as folder, _working_in(folder):
        *_, status = recorded_statuses(Path("orders-checkpoint"), keys)
        draw(status, file)


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
    """Work in a folder, in a picture without a date."""
    before, epoch = Path.cwd(), os.environ.get("SOURCE_DATE_EPOCH")
    os.chdir(folder)
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    try:
        yield
    finally:
        os.chdir(before)
        del os.environ["SOURCE_DATE_EPOCH"]
        if epoch is not None:
            os.environ["SOURCE_DATE_EPOCH"] = epoch


# -- the live view ---------------------------------------------------------------------------------


def top() -> Figure:
    """What ``kshare top`` shows of the recorded query, as a terminal of 100 columns does."""
    with _second_look() as latest:
        lines = render(latest, View(interval=2.0), 24, 100)
    figure = Figure(figsize=(10, 0.21 * len(lines) + 0.3))
    for number, line in enumerate(lines):
        figure.text(
            0.02,
            1 - (number + 1) / (len(lines) + 1),
            line.text.replace("$", r"\$"),
            family="DejaVu Sans Mono",
            fontsize=9.5,
            color={"plain": INK, "outlier": RED}.get(line.style, BLUE),
            fontweight="normal" if line.style in {"plain", "outlier"} else "bold",
        )
    return figure


def draw_page(file: Path) -> None:
    """Draw the page of ``kshare ui``, as a browser does."""
    from integration.browser import chromium  # noqa: PLC0415 - the other pictures need none

    with (
        _second_look() as latest,
        PageServer("127.0.0.1", 0) as server,
        chromium(own=True) as browser,
    ):
        fields = as_json(latest.snapshot, has_picture=True)
        server.publish(json.dumps({"interval": 2, **fields}).encode())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page(
            viewport={"width": 1100, "height": 800}, locale="en-GB", timezone_id="UTC"
        )
        page.clock.set_fixed_time(datetime.fromtimestamp(latest.snapshot.at + 1, UTC))
        page.goto(server.url)
        page.wait_for_selector("#ranges tbody tr")
        page.screenshot(path=file, full_page=True)
        server.shutdown()


@contextlib.contextmanager
def _second_look() -> Iterator[Latest]:
    """The recorded query as it is seen the second time, so with speeds."""
    times = iter((0.0, 10.0))
    with tempfile.TemporaryDirectory() as folder, _in_utc():
        watch = Watch(ScriptedLooker(*recorded(Path(folder))), 2.0, clock=lambda: next(times))
        yield watch.again()


@contextlib.contextmanager
def _in_utc() -> Iterator[None]:
    """Times of day that are the same everywhere."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        del os.environ["TZ"]
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


# -- all of them -----------------------------------------------------------------------------------

DRAWN: dict[str, Callable[[], Figure]] = {
    "cut": cut,
    "figures": figures,
    "progress": progress,
    "sharing": sharing,
    "measured": measured,
    "migration": migration,
    "top": top,
    "dashboard": runpy.run_path(str(DOCS / "dashboard_picture.py"))["dashboard"],
}


def draw_all(folder: Path, suffix: str = ".svg") -> list[Path]:
    """Draw all pictures into a folder; return their files."""
    metadata: Any = {"Date": None} if suffix == ".svg" else None
    files = []
    with mpl.rc_context(STYLE):
        sequences = tomllib.loads((DOCS / "sequences.toml").read_text())
        drawn = DRAWN | {name: partial(sequence, name) for name in sequences}
        for name, make in drawn.items():
            files.append(folder / f"{name}{suffix}")
            make().savefig(files[-1], metadata=metadata, dpi=110)
        files.append(folder / f"slow-key{suffix}")
        draw_slow_key(files[-1])
    return files


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    draw_all(chosen, *sys.argv[2:])
    draw_page(chosen / "ui.png")
