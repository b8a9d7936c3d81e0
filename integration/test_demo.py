"""``kshare demo`` as a user runs it: a process of its own, real Spark, the embedded broker."""

import subprocess
import sys


def test_the_demo_runs_and_finds_everything_in_order() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kshare.cli", "demo", "--records", "20000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ORDER OK: 20,000 records" in done.stdout
