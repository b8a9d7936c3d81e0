"""``kshare status --plot``: offsets x hash space, as a picture. On matplotlib, an optional extra.

Guarantees: what is pending is never drawn as processed: a gap narrower than a dot is drawn a dot
wide.

Cost: at most ``DOTS`` bars for each stripe of the hash space, no matter how many gaps there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kshare.core.hashing import HASH_SPACE, WHOLE
from kshare.core.offsets import Bounds
from kshare.core.region import Stripe
from kshare.errors import KshareError
from kshare.monitor.status import ParkedStatus, PartitionStatus, Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PANELS_MAX", "PlotError", "draw", "draw_partitions", "processed_bars"]

PANELS_MAX: Final = 16
"""The partitions drawn: those with the most gaps, then the most lag."""

DOTS: Final = 2_000
_PROCESSED, _PENDING, _PARKED = "#4c78a8", "#f1ece2", "#d62728"


class PlotError(KshareError):
    """There is no picture: the text says why."""


def draw(status: Status, file: Path) -> None:
    """Draw each partition of a query: offsets to the right, key hashes upwards.

    Args:
        status: what to draw.
        file: it ends in ``.png`` or ``.svg``.

    Raises:
        PlotError: As for :func:`draw_partitions`.
    """
    title = f"{status.checkpoint.directory}, batch {status.checkpoint.planned}"
    draw_partitions(title, status.partitions, file, status.parked)


def draw_partitions(
    title: str,
    partitions: Sequence[PartitionStatus],
    file: Path,
    parked: Sequence[ParkedStatus] = (),
) -> None:
    """Draw partitions: offsets to the right, key hashes upwards.

    Args:
        title: What they belong to.
        partitions: What to draw.
        file: It ends in ``.png`` or ``.svg``.
        parked: Parked keys.

    Raises:
        PlotError: it ends in something else, cannot be written, matplotlib is not installed, or
            there is no partition.
    """
    if file.suffix.lower() not in {".png", ".svg"}:
        raise PlotError(f"--plot {file}: wanted a name that ends in .png or .svg")
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
        from matplotlib.patches import Patch  # noqa: PLC0415
    except ImportError as error:
        raise PlotError("--plot needs matplotlib: pip install 'kshare[plot]'") from error
    shown = _chosen(partitions)
    if not shown:
        raise PlotError("there is no partition to draw yet")
    columns = 1 if len(shown) < 4 else 2
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(9 * columns, 2.6 * rows + 1), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    for panel, partition in zip(panels, shown, strict=False):
        _draw_partition(panel, partition, parked)
    colours = {"processed": _PROCESSED, "pending": _PENDING, "parked key": _PARKED}
    figure.legend(
        handles=[
            Patch(facecolor=colour, edgecolor="#999999", label=name)
            for name, colour in colours.items()
        ],
        loc="outside upper right",
        ncols=len(colours),
    )
    left_out = len(partitions) - len(shown)
    more = f" ({left_out} partitions with less to see are left out)" if left_out else ""
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


def _chosen(partitions: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Those with the most to see, in the order of the table."""
    every = list(partitions)
    ranked = sorted(range(len(every)), key=lambda i: (-every[i].done.gaps, -(every[i].lag or 0), i))
    return [every[i] for i in sorted(ranked[:PANELS_MAX])]


def _draw_partition(
    panel: "Axes", partition: PartitionStatus, parked: Iterable[ParkedStatus]
) -> None:
    done = partition.done
    start, end = _window(partition)
    panel.set_facecolor(_PENDING)
    panel.set_xlim(start, end)
    panel.set_ylim(0, 1)
    for stripe in done.stripes or (Stripe(WHOLE, ()),):
        bounds = (start, done.stable, *stripe.bounds) if start < done.stable else stripe.bounds
        bars: Any = processed_bars(_joined(bounds), start, end)
        low_and_height = (stripe.hashes.lo / HASH_SPACE, stripe.hashes.width / HASH_SPACE)
        panel.broken_barh(bars, low_and_height, facecolors=_PROCESSED, linewidth=0)
    topic, number = partition.topic_partition
    # Stripes that are too thin to be seen beside their neighbours.
    thin = [s.hashes for s in done.stripes if s.hashes.width * DOTS < HASH_SPACE]
    _lines(panel, {part.lo: done.position(part) for part in thin}, end, _PENDING)
    keys = [key for key in parked if key.topic == topic]
    _lines(panel, {key.hash: key.positions.get(number, done.front) for key in keys}, end, _PARKED)
    if partition.planned_to > done.front:
        panel.axvline(partition.planned_to, color="#555555", linestyle=":", linewidth=1)
    lag = "" if partition.lag is None else f", lag {partition.lag:,}"
    title = f"{partition.topic_partition}: stable {done.stable:,}, front {done.front:,}{lag}"
    panel.set_title(title, loc="left", fontsize="small")
    panel.set_xlabel("offset", fontsize="small")
    panel.set_ylabel("key hash", fontsize="small")
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set_yticks([0, 0.5, 1], ["0", "half", "end"])


def _lines(panel: "Axes", positions: Mapping[int, int], end: int, colour: str) -> None:
    """Draw single hashes from their positions to the end."""
    heights = [hash_ / HASH_SPACE for hash_ in positions]
    panel.hlines(heights, [*positions.values()], end, colors=colour, linewidth=1)


def _window(partition: PartitionStatus) -> tuple[int, int]:
    """The offsets to show: all from a bit below the stable one, so that there is something done."""
    done = partition.done
    end = max(partition.planned_to, done.front, partition.log[1] if partition.log else 0)
    start = max(done.stable - max((end - done.stable) // 10, 1), 0)
    return start, max(end, start + 1)


def _joined(bounds: Bounds) -> Bounds:
    """Flat ranges, with those that touch made one: only the first two can."""
    if len(bounds) >= 4 and bounds[1] == bounds[2]:
        return (bounds[0], *bounds[3:])
    return bounds
