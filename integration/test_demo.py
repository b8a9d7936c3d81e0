"""``kshare demo`` as a user runs it: a process of its own, real Spark, the embedded broker."""

import subprocess
import sys

import pytest


@pytest.mark.timeout(600)  # kernels may have to be compiled, beside other tests
def test_the_demo_runs_and_finds_everything_in_order() -> None:
    arguments = ["--records", "20000", "--key-ranges", "2", "--seconds", "500"]
    done = subprocess.run(
        [sys.executable, "-m", "kshare.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ORDER OK: 20,000 records" in done.stdout
