"""The dashboard's panels, as matplotlib draws what ``bench/dashboard.py`` has recorded.

No Grafana runs here: places, titles, lines and their names are those of
``docker/grafana/dashboards/kshare.json``.
"""

import json
import re
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

DOCS = Path(__file__).resolve().parent
BOARD = DOCS.parent / "docker/grafana/dashboards/kshare.json"
RECORDED = DOCS / "pictures/dashboard.json"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#7b8794", "#1f2933")
UNITS = {"s": "{:g} s", "cps": "{:g}/s", "percentunit": "{:.0%}", "short": "{:,g}"}
COLUMNS, INCH = 24, 0.62
LEGEND_MAX = 8


def dashboard() -> Figure:
    """Draw all panels, where Grafana shows them."""
    panels = json.loads(BOARD.read_text())["panels"]
    recorded = iter(json.loads(RECORDED.read_text()))
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(COLUMNS * INCH, rows * INCH * 0.62))
    for panel in panels:
        lines = [
            (_name(target["legendFormat"], series["metric"]), series["values"])
            for target in panel.get("targets", [])
            for series in next(recorded)
        ]
        place = panel["gridPos"]
        left, top = place["x"] / COLUMNS, 1 - place["y"] / rows
        if panel["type"] == "row":
            figure.text(0.008, top - 0.5 / rows, panel["title"], fontweight="bold", va="center")
            continue
        is_stat = panel["type"] == "stat"
        pad = (0.8, 1.1, 0.9, 1.5) if is_stat else (1.3, 1.2, 0.4, 2.4)  # cells
        box = (
            left + pad[0] / COLUMNS,
            top - (place["h"] - pad[3] / 2) / rows,
            (place["w"] - pad[0] - pad[2]) / COLUMNS,
            (place["h"] - pad[1] - pad[3] / 2) / rows,
        )
        axes = figure.add_axes(box)
        axes.set_title(panel["title"], fontsize=8.5, loc="left", pad=4)
        (_stat if is_stat else _lines)(axes, panel, lines)
    return figure


def _name(legend: str, metric: dict[str, str]) -> str:
    """Return the name of a line; of hashes and members, as much as tells them apart."""
    text = re.sub(r"{{(\w+)}}", lambda found: metric.get(found[1], ""), legend)
    text = re.sub(r"\b([0-9a-f]{2})[0-9a-f]{14}-([0-9a-f]{2})[0-9a-f]{14}\b", r"\1..-\2..", text)
    return re.sub(r"\S+-\d+-([0-9a-f]{4})[0-9a-f]{4}\b", r"member \1", text)


def _lines(axes: Axes, panel: dict[str, Any], lines: list[tuple[str, list[Any]]]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    if stacked:
        times = sorted({at for _, values in lines for at, _ in values})
        heights = [[dict(map(tuple, values)).get(at, 0) for at in times] for _, values in lines]
        names = [name for name, _ in lines]
        axes.stackplot(times, heights, labels=names, colors=COLOURS, alpha=0.6)
    for number, (name, values) in enumerate(() if stacked else lines):
        times, heights = zip(*values, strict=True) if values else ((), ())
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(times, heights, color=colour, linewidth=1, label=name)
    axes.set_ylim(bottom=defaults.get("min"), top=defaults.get("max"))
    axes.set_xlim(0, 180)
    axes.set_xticks([0, 60, 120, 180], ["0:00", "1:00", "2:00", "3:00"])
    unit = UNITS[defaults["unit"]]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit.format(value)))
    axes.tick_params(labelsize=6.5, length=2)
    axes.grid(color="#e4e7eb", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles[:LEGEND_MAX],
        names[:LEGEND_MAX],
        fontsize=5.8,
        frameon=False,
        ncols=3,
        loc="upper left",
        bbox_to_anchor=(-0.04, -0.12),
        columnspacing=1,
        handlelength=1,
        labelspacing=0.2,
    )


def _stat(axes: Axes, panel: dict[str, Any], lines: list[tuple[str, list[Any]]]) -> None:
    axes.axis("off")
    defaults = panel["fieldConfig"]["defaults"]
    shown = [line for line in lines if line[1]] or [("", [[0, float(defaults["noValue"])]])]
    for number, (name, values) in enumerate(shown):
        last = round(
            values[-1][1], 2 if defaults["unit"] == "percentunit" else defaults["decimals"]
        )
        steps = defaults["thresholds"]["steps"]
        (colour,) = [s["color"] for s in steps if s["value"] is None or last >= s["value"]][-1:]
        tint = {"green": "#009E73", "red": "#D55E00"}[colour]
        text = UNITS[defaults["unit"]].format(last)
        axes.text(0.5, 0.55 - 0.4 * number, text, ha="center", va="center", fontsize=17, color=tint)
        axes.text(0.5, 0.15 - 0.4 * number, name, ha="center", va="center", fontsize=7)
