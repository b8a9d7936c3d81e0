"""A fresh machine: the first batch of Python processes that find no compiled kernel.

``python -m bench.machine_jobs HOST:PORT``
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from bench import data
from bench.rows import Row, shown_seconds

AT_ONCE = 4
"""Workers that start at once; the sum of their CPU time may be this many times that of one."""
CPU_MAX = 1.2


def first_batch(servers: str) -> None:
    """Import kshare and read one batch; print seconds and CPU seconds as JSON."""
    started = time.perf_counter()
    import kshare
    from bench.wire_jobs import slice_of

    whole = slice_of(servers, data.MAIN, 1)
    next(iter(kshare.read_slice(whole, {"kafka.bootstrap.servers": servers})))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "cpu": time.process_time(), "mib": memory}))


def workers(servers: str, count: int, folder: str) -> list[dict[str, float]]:
    """Start some processes at once that keep their kernels in a folder; what each has measured."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
    command = [sys.executable, "-m", "bench.machine_jobs", servers]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    answers = [process.communicate()[0] for process in running]
    return [json.loads(answer) for answer in answers]


def measure(servers: str, runs: int) -> list[Row]:
    """Rows: one worker and several, without kernels and with them; CPU time of all; a warm image."""
    times: dict[str, list[float]] = {}
    ratios = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            alone = workers(servers, 1, folder)
            _keep(times, "1 worker", alone)
            _keep(times, "1 worker, kernels there", workers(servers, 1, folder))
            warm = workers(servers, AT_ONCE, folder)
            _keep(times, f"{AT_ONCE} workers, kernels there", warm)
        with tempfile.TemporaryDirectory() as folder:
            together = workers(servers, AT_ONCE, folder)
            _keep(times, f"{AT_ONCE} workers", together)
        # What compiling costs: each of them reads its batch besides, and starts.
        one = _cpu(alone) - _cpu(warm) / AT_ONCE
        ratios.append((_cpu(together) - _cpu(warm)) / one)
    rows = [
        Row(f"fresh machine, first batch: {name}", "-", shown_seconds(seconds), "-", "-", True)
        for name, seconds in times.items()
    ]
    ratio = min(ratios)
    name = f"CPU time of compiling: {AT_ONCE} workers at once / one"
    rows.append(Row(name, "-", "-", f"{ratio:.2f}x", f"<= {CPU_MAX}x", ratio <= CPU_MAX))
    return rows


def _keep(
    times: dict[str, list[float]], name: str, measured: Sequence[Mapping[str, float]]
) -> None:
    times.setdefault(name, []).append(max(each["seconds"] for each in measured))


def _cpu(measured: Sequence[Mapping[str, float]]) -> float:
    return sum(each["cpu"] for each in measured)


if __name__ == "__main__":
    first_batch(sys.argv[1])
