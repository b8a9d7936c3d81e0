"""Every fault of the project, for as long as one wants, and a verdict: ``make soak MINUTES=60``.

``python -m integration.soak [--minutes 10] [--seed N] [--folder DIR] [--only NAME]``

A stream, a consumer and a processor live from the start to the end, and nothing is done to them:
what they use is shown at both (:mod:`integration.residents`). Beside them, one round follows
another, in an order and with faults that the seed decides; a new seed each time, unless one is
given:

``query``    a query is killed at random points (:class:`integration.test_range_kills.Soak`)
``members``  members that receive in all ways are killed and stopped, brokers too
             (:mod:`integration.member_histories`)
``FILE``     the tests of faults in a file, with the seed for all that is random in them

Histories stay in the folder: what members wrote, what queries wrote, the log of each round. The
exit code is the number of rounds that failed, and of residents that lost something.
"""

import argparse
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from integration.chance import SEED
from integration.conditions import brokers_of
from integration.kafka import KafkaBroker
from integration.member_histories import MODES, members_round
from integration.residents import Measure, Residents, residents
from integration.runs import ROOT, Driver
from integration.test_range_kills import Soak

__all__ = ["FILES", "main"]

FILES: Final = (
    "test_checkpoint",
    "test_cluster_stream",
    "test_consumer",
    "test_cooperative",
    "test_faults",
    "test_group_faults",
    "test_group_log",
    "test_group_log_members",
    "test_group_log_rights",
    "test_group_membership",
    "test_group_migration",
    "test_group_spark",
    "test_group_transaction_faults",
    "test_group_transactions",
    "test_late_requests",
    "test_parking",
    "test_policies",
    "test_restoration",
    "test_retention",
    "test_sink",
    "test_sink_cluster",
    "test_taken_away",
    "test_token_provider",
)
"""The tests that break something."""

_KILLS: Final = 4
_CHAOS_SECONDS: Final = 40.0
_WARM_SECONDS: Final = 60.0
_FEED_SECONDS: Final = 5.0
_FEED_RECORDS: Final = 40


@dataclass(frozen=True, slots=True)
class Round:
    """A round: what it does, given a seed and a folder; it returns what is wrong."""

    name: str
    run: Callable[[int, Path], list[str]]


def _query(seed: int, folder: Path) -> list[str]:
    with KafkaBroker() as broker, Driver(folder) as driver:
        soak = Soak.on(broker, driver, folder, seed)
        report = soak.kill(_KILLS, drivers=1)
        print(f"  {soak}\n  {report}", flush=True)
    return [] if report.ok else [str(report)]


def _members(mode: str, brokers: int) -> Callable[[int, Path], list[str]]:
    def run(seed: int, folder: Path) -> list[str]:
        with brokers_of(brokers) as (where, cluster):
            chance = random.Random(seed)
            verdict = members_round(mode, where, cluster, _CHAOS_SECONDS, chance, folder)
        print(f"  {mode}: {verdict.text}", flush=True)
        return verdict.faults

    return run


def _tests(file: str) -> Callable[[int, Path], list[str]]:
    def run(seed: int, folder: Path) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += [f"--basetemp={folder}/tests", f"integration/{file}.py"]
        with (folder / "log").open("wb") as log:
            environment = {**os.environ, SEED: str(seed)}
            to_log: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
            done = subprocess.run(command, cwd=ROOT, env=environment, check=False, **to_log)
        lines = (folder / "log").read_text(errors="replace").splitlines()
        print(f"  {lines[-1] if lines else 'nothing'}", flush=True)
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return failed or ([] if done.returncode == 0 else [f"pytest: exit code {done.returncode}"])

    return run


def rounds() -> list[Round]:
    """All of them."""
    of_members = [
        Round(f"members ({mode}; {brokers} brokers)", _members(mode, brokers))
        for mode in MODES
        for brokers in (1, 3)
    ]
    return [Round("query", _query), *of_members, *(Round(file, _tests(file)) for file in FILES)]


def soak(minutes: float, seed: int, folder: Path, only: str) -> int:
    """Soak, print the verdict, and return the number of faults."""
    chance = random.Random(seed)
    print(f"seed {seed}, histories in {folder}", flush=True)
    failed: list[str] = []
    until = time.monotonic() + 60 * minutes
    place = folder / "residents"
    place.mkdir(parents=True)
    done = 0
    with residents(place) as living:
        _feed(living, time.monotonic() + min(_WARM_SECONDS, 30 * minutes))
        began = living.measure()
        _show("at the start", began)
        waiting: list[Round] = []
        while time.monotonic() < until:
            if not waiting:
                waiting = [each for each in rounds() if only in each.name]
                chance.shuffle(waiting)
            each, done = waiting.pop(), done + 1
            failed += _run(each, done, chance.randrange(1 << 30), folder, living)
        ended = living.measure()
        _show("at the end", ended)
        failed += [f"residents: {fault}" for fault in living.end()]
    what = {role: [asdict(began[role]), asdict(ended[role])] for role in began}
    verdict = {"seed": seed, "rounds": done, "failed": failed, "resources": what}
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n")
    for fault in failed:
        print(f"FAILED {fault}")
    print(f"{done} rounds, {living.produced} records at the residents; {len(failed)} faults")
    return len(failed)


def _run(each: Round, number: int, seed: int, folder: Path, living: Residents) -> list[str]:
    place = folder / f"{number:03}-{each.name.split()[0]}"
    place.mkdir()
    began = time.monotonic()
    print(f"{number:3} {each.name}, seed {seed}", flush=True)
    living.feed(_FEED_RECORDS)
    try:
        faults = each.run(seed, place)
    except Exception as error:
        faults = [f"{type(error).__name__}: {error}"]
    seconds = time.monotonic() - began
    print(f"    {seconds:.0f} s, {len(faults)} faults", flush=True)
    living.feed(int(seconds / _FEED_SECONDS) * _FEED_RECORDS)
    return [f"{number} {each.name}, seed {seed}: {fault}" for fault in faults]


def _feed(living: Residents, until: float) -> None:
    while time.monotonic() < until:
        living.feed(_FEED_RECORDS)
        time.sleep(_FEED_SECONDS)


def _show(when: str, measures: Mapping[str, Measure]) -> None:
    print(f"{when}:", flush=True)
    for role, measure in measures.items():
        print(f"  {role}: {measure}", flush=True)


def main(arguments: list[str]) -> int:
    """Run, and return the number of faults."""
    parser = argparse.ArgumentParser(prog="integration.soak")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", default="", help="rounds whose names have this")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(1 << 30) if given.seed is None else given.seed
    folder = given.folder or ROOT / "soak" / f"{seed}"
    return soak(given.minutes, seed, folder, given.only)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 100))
