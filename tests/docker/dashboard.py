"""The dashboard and the alerts, as data: what they ask Prometheus for."""

import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

from tests.support.documents import ROOT

DASHBOARD = ROOT / "docker/grafana/dashboards/kshare.json"
ALERTS = ROOT / "docker/prometheus/alerts.yml"


@dataclass(frozen=True)
class Target:
    """One line, or group of lines, of a panel.

    Attributes:
        panel: The panel's title.
        expression: The query, with every value of each variable.
        legend: The name of a line; labels in braces.
    """

    panel: str
    expression: str
    legend: str


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return board


def targets() -> list[Target]:
    """Return what the panels show."""
    return [
        Target(panel["title"], re.sub(r"\$\w+", ".*", target["expr"]), target["legendFormat"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    ]


def alerts() -> list[dict[str, Any]]:
    """Return the rules of all alerts."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metrics(text: str) -> set[str]:
    """Return the names of kshare's metrics in an expression."""
    return set(re.findall(r"\bkshare_\w+", text))


def labels(expression: str, shown: str) -> set[str]:
    """Return the labels that an expression and the text beside it name."""
    named = re.findall(r"\b(?:by|on|without|ignoring|group_left)\s*\(([^)]*)\)", expression)
    found = {name.strip() for names in named for name in names.split(",")}
    found |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    found |= set(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", shown))
    return found - {"", "le", "value"}
