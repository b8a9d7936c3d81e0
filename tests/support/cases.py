"""The visible cases, Kafka's judge, and random cases larger than the visible ones."""

import importlib.util
import json
import random
import uuid
from pathlib import Path
from typing import Any

from kshare.assignment.cases import Case, run_case

FOLDER = Path(__file__).parents[1] / "assignment" / "cases"
HA, STICKY = "HighAvailabilityTaskAssignor", "StickyTaskAssignor"

_spec = importlib.util.spec_from_file_location("kip924_judge", FOLDER / "judge.py")
assert _spec is not None
assert _spec.loader is not None
judge = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(judge)


def load(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())["cases"]
    return cases


def answer(case: dict[str, Any]) -> dict[str, Any]:
    return run_case(Case.read(case)).answer


def violations(case: dict[str, Any]) -> list[str]:
    """What the judge's hard rules say of our answer."""
    found: list[str] = judge.validity(case, answer(case))
    return found


def next_round(case: dict[str, Any], out: dict[str, Any]) -> None:
    """The convergence protocol: what the next rebalance sees."""
    for process in case["processes"]:
        held = out["assignment"][process["id"]]
        process["prev_active"], process["prev_standby"] = held["active"], held["standby"]
        mine = {*held["active"], *held["standby"]}
        process["lags"] = {
            task["id"]: 0 for task in case["tasks"] if task.get("changelogs") and task["id"] in mine
        }


def random_case(seed: int, assignor: str = HA, **given: Any) -> dict[str, Any]:
    """A case of any sort. All of it follows from the arguments; what is given is not random."""
    rng = random.Random(f"{seed}/{assignor}")

    def pick(name: str, choices: list[Any]) -> Any:
        return given.get(name, rng.choice(choices))

    racks = pick("racks", [0, 0, 2, 3])
    strategy = pick("strategy", ["none", "min_traffic", "balance_subtopology"])
    standbys = pick("standbys", [0, 1, 1, 2])
    tags = pick("tags", [0, 0, 1, 2])
    configs: dict[str, Any] = {
        "acceptable_recovery_lag": pick("acceptable", [0, 100, 10_000, judge.MAXLONG]),
        "max_warmup_replicas": pick("warmups", [1, 2, 10]),
        "num_standby_replicas": standbys,
        "rack_aware_assignment_strategy": strategy,
        "rack_aware_assignment_tags": [f"k{number}" for number in range(tags)],
    }
    if pick("has_costs", [True, True, False]):
        configs["rack_aware_traffic_cost"] = rng.choice([1, 10])
        configs["rack_aware_non_overlap_cost"] = rng.choice([0, 1, 10])
    tasks, partition_racks = _tasks(
        rng, pick("tasks", [1, 5, 20, 60]), pick("gaps", [0, 0, 0.02]), racks
    )
    processes: list[dict[str, Any]] = [
        {
            "id": str(uuid.UUID(int=rng.getrandbits(128))),
            "threads": rng.choice([1, 1, 2, 4]),
            "prev_active": [],
            "prev_standby": [],
            "tags": {f"k{one}": rng.choice("abc") for one in range(3) if rng.random() < 0.8},
            **({"rack": f"r{rng.randrange(racks)}"} if racks else {}),
        }
        for _ in range(pick("processes", [1, 3, 8, 15]))
    ]
    _give_past(rng, tasks, processes, standbys, pick("scenario", ["fresh", "out", "in", "steady"]))
    case = {
        "id": f"random-{seed}",
        "op": "assign",
        "assignor": assignor,
        "configs": configs,
        "tasks": tasks,
        "processes": processes,
    }
    if racks:
        case["partition_racks"] = partition_racks
    if assignor == STICKY:
        case["must_preserve_active"] = pick("preserve", [False, False, False, True])
    return case


def _tasks(
    rng: random.Random, count: int, gaps: float, racks: int
) -> tuple[list[dict[str, Any]], dict[str, list[str | None]]]:
    tasks: list[dict[str, Any]] = []
    partition_racks: dict[str, list[str | None]] = {}
    kinds = [rng.choice(["logged", "logged", "source", "stateless", "unlogged"]) for _ in range(5)]
    sizes = [0] * 5
    for _ in range(count):
        sizes[rng.randrange(1 + min(4, count // 3))] += 1
    for subtopology, size in enumerate(sizes):
        for partition in range(size):
            name = f"{subtopology}-{partition}"
            task: dict[str, Any] = {"id": f"{subtopology}_{partition}", "inputs": [f"in{name}"]}
            if kinds[subtopology] in {"logged", "source"}:
                is_source = kinds[subtopology] == "source"
                task["changelogs"] = [f"in{name}" if is_source else f"store{name}"]
                task["end_offset"] = rng.choice([0, rng.randrange(2_000_000)])
            elif kinds[subtopology] == "unlogged":
                task["stateful"] = True
            tasks.append(task)
            for one in dict.fromkeys([*task["inputs"], *task.get("changelogs", [])]):
                if not racks:
                    continue
                replicas = [f"r{at}" for at in rng.sample(range(racks), rng.randint(1, racks))]
                if rng.random() >= gaps:
                    partition_racks[one] = [*replicas, *([None] if rng.random() < gaps else [])]
    rng.shuffle(tasks)
    return tasks, partition_racks


def _give_past(
    rng: random.Random,
    tasks: list[dict[str, Any]],
    processes: list[dict[str, Any]],
    standbys: int,
    scenario: str,
) -> None:
    """What processes had; when some left, tasks are nowhere, and some have left the topology."""
    old = processes if scenario == "steady" else processes[: 1 + len(processes) // 2]
    if scenario == "fresh":
        return
    for task in tasks:
        copies = 1 + (standbys if task.get("changelogs") else 0)
        hold = rng.sample(old, min(len(old), copies))
        if scenario != "in" or rng.random() < 0.7:
            hold.pop(0)["prev_active"].append(task["id"])
        for one in hold:
            one["prev_standby"].append(task["id"])
    if rng.random() < 0.3:
        old[0]["prev_active"].append("99_0")
    for one in processes:
        lags = {}
        for task in tasks:
            if not task.get("changelogs"):
                continue
            if task["id"] in one["prev_active"]:
                lags[task["id"]] = rng.choice([0, -2, rng.randrange(30)])
            elif task["id"] in one["prev_standby"]:
                lags[task["id"]] = rng.choice([0, rng.randrange(5000), rng.randrange(200_000), -3])
            elif rng.random() < 0.05:
                lags[task["id"]] = rng.choice([-3, rng.randrange(300_000)])
        one["lags"] = lags


def relabelled(case: dict[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The same in another order, with other names that sort alike; and the old names."""
    rng = random.Random(seed)
    old = sorted((process["id"] for process in case["processes"]), key=java_order)
    new = sorted((str(uuid.UUID(int=rng.getrandbits(128))) for _ in old), key=java_order)
    names = dict(zip(old, new, strict=True))
    tasks = rng.sample(case["tasks"], len(case["tasks"]))
    processes = [
        {**process, "id": names[process["id"]], "prev_active": process["prev_active"][::-1]}
        for process in rng.sample(case["processes"], len(case["processes"]))
    ]
    return {**case, "tasks": tasks, "processes": processes}, dict(zip(new, old, strict=True))


def java_order(name: str) -> tuple[int, int]:
    """Like UUID.compareTo: two signed halves."""
    whole = uuid.UUID(name).int
    halves = whole >> 64, whole & (2**64 - 1)
    high, low = (half - 2**64 if half >= 2**63 else half for half in halves)
    return high, low
