"""``kshare status --plot``: offsets x hash space, as a picture. On matplotlib, an optional extra.

Guarantees: what is pending is never drawn as processed: a gap narrower than a dot is drawn a dot
wide.

Cost: at most ``DOTS`` bars for each stripe of the hash space, no matter how many gaps there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange
from kshare.core.listing import counted
from kshare.core.offsets import Bounds
from kshare.core.region import Stripe
from kshare.errors import PlotError
from kshare.monitor.status import ParkedStatus, PartitionStatus, Status, unchanged_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "PANELS_MAX",
    "Panel",
    "chosen",
    "draw",
    "draw_partitions",
    "panel",
    "processed_bars",
    "window",
]

PANELS_MAX: Final = 16
"""The partitions drawn: those with the most gaps, then the most lag."""

DOTS: Final = 2_000
_PROCESSED, _PENDING, _PARKED, _PLANNED = "#4c78a8", "#f1ece2", "#d62728", "#555555"
_NAMES_MAX: Final = 8  # more names of parked keys would hide the picture
_NAME_CHARACTERS: Final = 40
_NAME_HEIGHT: Final = 0.15  # a name's, as a part of the picture's


def draw(status: Status, file: Path, now: float | None = None) -> None:
    """Draw each partition of a query: offsets to the right, key hashes downwards, as in tables.

    Args:
        status: what to draw.
        file: it ends in ``.png`` or ``.svg``.
        now: Seconds since 1970, to say that the query may have stopped; None to say nothing of it.

    Raises:
        PlotError: As for :func:`draw_partitions`.
    """
    checkpoint = status.checkpoint
    title = f"{checkpoint.directory}, batch {checkpoint.planned}"
    still = None if now is None else status.unchanged_seconds(now)
    if still is not None:
        title += f", {unchanged_text(still)}"
    verb = "may read" if still is None else "was planned to read"
    planned = f"batch {checkpoint.planned} {verb} up to here"
    draw_partitions(title, status.partitions, file, status.parked, planned)


def draw_partitions(
    title: str,
    partitions: Sequence[PartitionStatus],
    file: Path,
    parked: Sequence[ParkedStatus] = (),
    planned: str = "",
) -> None:
    """Draw partitions: offsets to the right, key hashes downwards, as in tables.

    Args:
        title: What they belong to.
        partitions: What to draw.
        file: It ends in ``.png`` or ``.svg``.
        parked: Parked keys.
        planned: The name of the line up to which a planned batch may read; empty if there is none.

    Raises:
        PlotError: It ends in something else, cannot be written, matplotlib is not installed, or
            there is no partition.
    """
    if file.suffix.lower() not in {".png", ".svg"}:
        raise PlotError(f"--plot {file}: wanted a name that ends in .png or .svg")
    try:
        from matplotlib.artist import Artist  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.lines import Line2D  # noqa: PLC0415
        from matplotlib.patches import Patch  # noqa: PLC0415
    except ImportError as error:
        raise PlotError("--plot needs matplotlib: pip install 'kshare[plot]'") from error
    shown = chosen(partitions)
    if not shown:
        raise PlotError("there is no partition to draw yet")
    columns = 1 if len(shown) < 4 else 2
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(9 * columns, 2.6 * rows + 1), layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in every[len(shown) :]:
        axes.set_axis_off()
    for axes, partition in zip(every, shown, strict=False):
        _draw_partition(axes, partition, parked)
    colours = {"processed": _PROCESSED, "pending": _PENDING, "parked key": _PARKED}
    handles: list[Artist] = [
        Patch(facecolor=colour, edgecolor="#999999", label=name) for name, colour in colours.items()
    ]
    if planned and any(each.planned_to > each.done.front for each in shown):
        handles.append(Line2D([], [], color=_PLANNED, linestyle=":", linewidth=1.5, label=planned))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize="small")
    left_out = len(partitions) - len(shown)
    more = f" (left out: {counted(left_out, 'partition')} with less to see)" if left_out else ""
    # A directory's name is no formula.
    figure.suptitle(f"{title}{more}".replace("$", r"\$"), x=0.01, ha="left", fontsize="medium")
    try:
        figure.savefig(file)
    except OSError as error:
        raise PlotError(f"--plot {file}: {error.strerror or error}") from error


def processed_bars(bounds: Bounds, start: int, end: int, dots: int = DOTS) -> list[tuple[int, int]]:
    """Processed offsets as bars, in the resolution of the picture.

    Args:
        bounds: processed offset ranges, flat: start, end, start, end, ... ascending.
        start: the first offset of the picture.
        end: the offset after its last.
        dots: how many dots wide it is.

    Returns:
        Bars (start, width), disjoint and ascending, at most half as many as dots and one more. A
        dot in which anything is pending is in none; so a bar is never more than what is processed.
    """
    dot = max(-(-(end - start) // dots), 1)
    bars: list[tuple[int, int]] = []
    for first, last in zip(bounds[::2], bounds[1::2], strict=True):
        # Inwards to whole dots; the ends of the picture are ends of dots.
        lo = max(first, start)
        hi = min(last, end)
        lo = start + -(-(lo - start) // dot) * dot
        if hi < end:
            hi = start + (hi - start) // dot * dot
        if lo < hi:
            bars.append((lo, hi - lo))
    return bars


@dataclass(frozen=True, slots=True)
class Panel:
    """The picture of a partition, as it is drawn here and on the page of ``kshare ui``.

    Attributes:
        start: The first offset that is shown.
        end: The offset after the last.
        stripes: For each stripe of the hash space the bars of what is processed: start and width.
        thin: Single hashes and others too thin to be seen: first hash to first pending offset.
        parked: Hashes of parked keys, each with the first offset that waits.
        planned_to: Up to where the planned batch may read; None if that is not above the front.
    """

    start: int
    end: int
    stripes: tuple[tuple[HashRange, list[tuple[int, int]]], ...]
    thin: Mapping[int, int]
    parked: Mapping[int, int]
    planned_to: int | None


def panel(partition: PartitionStatus, parked: Iterable[ParkedStatus], dots: int = DOTS) -> Panel:
    """Work out the picture of a partition.

    Args:
        partition: The partition.
        parked: Parked keys, of any topics.
        dots: How many dots wide the picture is.
    """
    done = partition.done
    start, end = window(partition)
    stripes = []
    for stripe in done.stripes or (Stripe(WHOLE, ()),):
        bounds = (start, done.stable, *stripe.bounds) if start < done.stable else stripe.bounds
        stripes.append((stripe.hashes, processed_bars(_joined(bounds), start, end, dots)))
    topic, number = partition.topic_partition
    thin = [s.hashes for s in done.stripes if s.hashes.width * dots < HASH_SPACE]
    keys = [key for key in parked if key.topic == topic]
    return Panel(
        start=start,
        end=end,
        stripes=tuple(stripes),
        thin={part.lo: done.position(part) for part in thin},
        parked={
            key.hash: key.positions.get(number, done.position(HashRange.of(key.hash)))
            for key in keys
        },
        planned_to=partition.planned_to if partition.planned_to > done.front else None,
    )


def chosen(partitions: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Those with the most to see, at most :data:`PANELS_MAX`, in the order of the table."""
    every = list(partitions)
    ranked = sorted(range(len(every)), key=lambda i: (-every[i].done.gaps, -(every[i].lag or 0), i))
    return [every[i] for i in sorted(ranked[:PANELS_MAX])]


def _draw_partition(
    axes: "Axes", partition: PartitionStatus, parked: Iterable[ParkedStatus]
) -> None:
    drawn = panel(partition, parked)
    axes.set_facecolor(_PENDING)
    axes.set_xlim(drawn.start, drawn.end)
    axes.set_ylim(1, 0)  # as tables: the first hash is on top
    for hashes, bars in drawn.stripes:
        low_and_height = (hashes.lo / HASH_SPACE, hashes.width / HASH_SPACE)
        axes.broken_barh(bars, low_and_height, facecolors=_PROCESSED, linewidth=0)
    _lines(axes, drawn.thin, drawn.end, _PENDING)
    _lines(axes, drawn.parked, drawn.end, _PARKED)
    _name_parked(axes, drawn, parked)
    if drawn.planned_to is not None:
        axes.axvline(drawn.planned_to, color=_PLANNED, linestyle=":", linewidth=1.5)
    done = partition.done
    lag = "" if partition.lag is None else f", lag {partition.lag:,}"
    title = f"{partition.topic_partition}: stable {done.stable:,}, front {done.front:,}{lag}"
    axes.set_title(title, loc="left", fontsize="small")
    axes.set_xlabel("offset", fontsize="small")
    axes.set_ylabel("key hash", fontsize="small")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.tick_params(labelsize="small")


def _name_parked(axes: "Axes", drawn: Panel, parked: Iterable[ParkedStatus]) -> None:
    """Write the names of parked keys above their lines; of many, none."""
    names = {key.hash: _shortened(key.name) for key in parked if key.key is not None}
    named = [(hash_, at) for hash_, at in drawn.parked.items() if hash_ in names]
    if len(named) > _NAMES_MAX:
        return
    for hash_, _ in named:
        height = hash_ / HASH_SPACE
        is_high = height < _NAME_HEIGHT
        axes.annotate(
            names[hash_].replace("$", r"\$"),
            (drawn.end, height),
            xytext=(-4, -2 if is_high else 2),
            textcoords="offset points",
            ha="right",
            va="top" if is_high else "bottom",
            fontsize="small",
            color=_PARKED,
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _NAME_CHARACTERS else f"{text[:_NAME_CHARACTERS]}..."


def _lines(axes: "Axes", positions: Mapping[int, int], end: int, colour: str) -> None:
    """Draw single hashes from their positions to the end."""
    heights = [hash_ / HASH_SPACE for hash_ in positions]
    axes.hlines(heights, [*positions.values()], end, colors=colour, linewidth=1)


def window(partition: PartitionStatus) -> tuple[int, int]:
    """The offsets of a picture: from a bit below the stable one, so that something is done."""
    done = partition.done
    end = max(partition.planned_to, done.front, partition.log[1] if partition.log else 0)
    start = max(done.stable - max((end - done.stable) // 10, 1), 0)
    return start, max(end, start + 1)


def _joined(bounds: Bounds) -> Bounds:
    """Flat ranges, with those that touch made one: only the first two can."""
    if len(bounds) >= 4 and bounds[1] == bounds[2]:
        return (bounds[0], *bounds[3:])
    return bounds
