"""Task assignors, in one process, warm, beside Kafka's own Java times (tests/assignment/cases).

Like Kafka's anchors: a third of the processes is new, each task has a standby, ten warmups.
"""

import json
import random
import statistics
import time
import uuid
from pathlib import Path
from typing import Any

from kshare.assignment.cases import Case, run_case
from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.loading import load_task_assignor
from kshare.core.hashing import WHOLE, split

ANCHORS = Path(__file__).parents[1] / "tests/assignment/cases/performance.json"
HA, STICKY = "HighAvailabilityTaskAssignor", "StickyTaskAssignor"

ROWS = [  # processes, tasks, strategy, assignor, target in seconds
    (50, 500, "none", STICKY, 0.06),
    (50, 500, "none", HA, 0.1),
    (200, 2000, "none", HA, 1.0),
    (50, 500, "min_traffic", STICKY, 0.5),
    (50, 500, "min_traffic", HA, 0.5),
    (50, 500, "balance_subtopology", STICKY, 2.0),
    (50, 500, "balance_subtopology", HA, 2.0),
]


def kafka_ms(assignor: str, processes: int, tasks: int, strategy: str) -> float:
    """Kafka's median time."""
    for row in json.loads(ANCHORS.read_text())["results"]:
        given = row["input"]
        size = (given["assignor"], given["procs"], given["tasks"], given["standbys"])
        is_same = size == (assignor, processes, tasks, 1) and not given.get("tags")
        if is_same and given.get("strategy", "none") == strategy:
            return float(row["median_ms"])
    raise LookupError(f"no anchor for {assignor} {processes} x {tasks} {strategy}")


def situation(processes: int, tasks: int, strategy: str, seed: int = 77) -> ApplicationState:
    """A third of the processes is new; where tasks were is random."""
    rng = random.Random(seed)
    subtopologies = max(5, tasks // 42)
    racks: dict[str, list[str]] = {}
    states: list[dict[str, Any]] = [
        {
            "id": str(uuid.UUID(int=rng.getrandbits(128))),
            "threads": rng.choice([1, 2, 4]),
            "rack": f"r{rng.randrange(3)}",
            "prev_active": [],
            "prev_standby": [],
            "lags": {},
        }
        for _ in range(processes)
    ]
    old = states[: processes * 2 // 3]
    infos = []
    for number in range(tasks):
        subtopology, partition = number % subtopologies, number // subtopologies
        task: dict[str, Any] = {
            "id": f"{subtopology}_{partition}",
            "inputs": [f"in{subtopology}-{partition}"],
        }
        if subtopology % 3:
            task["changelogs"] = [f"store{subtopology}-{partition}"]
            task["end_offset"] = rng.randrange(2_000_000)
        for one in [*task["inputs"], *task.get("changelogs", [])]:
            racks[one] = [f"r{at}" for at in rng.sample(range(3), 2)]
        owner, holder = rng.sample(old, 2)
        owner["prev_active"].append(task["id"])
        if "changelogs" in task:
            holder["prev_standby"].append(task["id"])
            owner["lags"][task["id"]] = 0
            holder["lags"][task["id"]] = rng.randrange(20_000)
        infos.append(task)
    fields = {
        "configs": {
            "num_standby_replicas": 1,
            "max_warmup_replicas": 10,
            "rack_aware_assignment_strategy": strategy,
            "rack_aware_traffic_cost": 10,
            "rack_aware_non_overlap_cost": 1,
        },
        "tasks": infos,
        "processes": states,
        "partition_racks": racks,
    }
    state = run_case(Case.read({**fields, "op": "identity"})).state
    assert state is not None
    return state


def shared(partitions: int, ranges: int, executors: int) -> ApplicationState:
    """What planning asks for: key ranges of partitions, on executors of four slots."""
    tasks = [
        {"id": f"0_{partition}-[{part.lo},{part.hi})", "inputs": [f"t-{partition}"]}
        for partition in range(partitions)
        for part in split(WHOLE, ranges)
    ]
    processes = [{"id": str(number), "threads": 4} for number in range(executors)]
    fields = {"op": "identity", "tasks": tasks, "processes": processes}
    state = run_case(Case.read(fields)).state
    assert state is not None
    return state


def seconds(assignor: str, state: ApplicationState, runs: int) -> list[float]:
    """Times of warm calls."""
    made = load_task_assignor(assignor)
    made.assign(state)
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        made.assign(state)
        times.append(time.perf_counter() - started)
    return times


def measure(runs: int) -> list[tuple[str, str, str, str, str, bool]]:
    """Name, Kafka's time, ours, ratio, target, met: of each row."""
    rows = []
    for processes, tasks, strategy, assignor, target in ROWS:
        kafka = kafka_ms(assignor, processes, tasks, strategy) / 1000
        times = seconds(assignor, situation(processes, tasks, strategy), runs)
        median = statistics.median(times)
        racks = "" if strategy == "none" else f", {strategy}"
        name = f"assign {tasks} tasks to {processes} processes, {assignor}{racks}"
        ratio = f"{kafka / median:.1f}x"
        rows.append((name, _time(kafka), _shown(times), ratio, f"<= {target} s", median <= target))
    for assignor in (HA, STICKY):
        times = seconds(assignor, shared(10_000, 8, 500), runs)
        name = f"assign 10,000 partitions x 8 ranges to 500 executors, {assignor}"
        rows.append((name, "-", _shown(times), "-", "<= 2 s", statistics.median(times) <= 2))
    return rows


def _shown(times: list[float]) -> str:
    return f"{_time(min(times))} ({_time(statistics.median(times))})"


def _time(seconds_: float) -> str:
    return f"{seconds_ * 1000:.0f} ms" if seconds_ < 1 else f"{seconds_:.1f} s"


if __name__ == "__main__":
    for row in measure(5):
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
