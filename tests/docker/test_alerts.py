"""The alerts fire when they should: Prometheus's own tool runs them over given series."""

import subprocess

import pytest
import yaml

from integration.prometheus import program
from tests.docker.dashboard import ALERTS, alerts
from tests.support.documents import ROOT

CASES = ROOT / "tests/docker/alerts_test.yml"


@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", str(ALERTS)),
        ("check", "config", str(ROOT / "docker/prometheus/prometheus.yml")),
        ("test", "rules", str(CASES)),
    ],
    ids=" ".join,
)
def test_promtool_agrees(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [program("promtool"), *command], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_seen_to_fire() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    fired = {
        case["alertname"]
        for test in cases
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in alerts()}
