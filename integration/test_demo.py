"""``kshare demo`` as a user runs it: a process of its own, real Spark, the embedded broker."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest


def test_the_demo_runs_and_finds_everything_in_order() -> None:
    arguments = ["--records", "20000", "--key-ranges", "2", "--seconds", "500"]
    done = subprocess.run(
        [sys.executable, "-m", "kshare.cli", "demo", *arguments],
        env={**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        capture_output=True,
        text=True,
        check=False,
        timeout=580,  # kernels may have to be compiled, beside other tests
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ORDER OK: 20,000 records" in done.stdout


def members_of_demos() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "spark_plugin.demo.member" in (process.info["cmdline"] or ())
    ]


@pytest.mark.long
def test_the_demo_of_groups_kills_processes_and_the_order_holds() -> None:
    arguments = ["--group", "--records", "4000", "--seconds", "400"]
    done = subprocess.run(
        [sys.executable, "-m", "kshare.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=430,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ORDER OK: 4,000 records" in done.stdout
    assert "Killed process 2 (kill -9)" in done.stdout
    bars = [line.split("|")[1] for line in done.stdout.splitlines() if line.count("|") == 2]
    assert any(Counter(bar) == dict.fromkeys("1234", 12) for bar in bars), done.stdout
    assert "xxxx" in done.stdout
    assert members_of_demos() == []


def test_no_process_stays_behind_when_the_demo_is_killed() -> None:
    command = [sys.executable, "-m", "kshare.cli", "demo", "--group", "--records", "100"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as demo:
        deadline = time.monotonic() + 60
        while len(psutil.Process(demo.pid).children()) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(3)  # they have begun to run
        children = psutil.Process(demo.pid).children()
        demo.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert (len(gone), alive) == (4, [])
