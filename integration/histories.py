"""Histories in each mode of groups, and a verdict: ``python -m integration.histories``.

``python -m integration.histories [--mode MODE] [--minutes 10] [--seed N] [--folder DIR]``

Three brokers; the members have quotas, are killed, ended, replaced, and suspended for longer than
every time-out; brokers are killed and frozen, and leaders are moved; the groups' log has segments
of a second, and is compacted all the time. MODE is a mode's name, or a part of several; without it,
all run one after another, each for so many minutes.

What processes did stays in the folder, one folder a mode. The exit code is 1 if anything was lost,
came twice or out of order although it must not, or was set back; the first of it is printed.
"""

import argparse
import random
import secrets
import sys
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from integration.conditions import Verdict, brokers_of
from integration.handler_histories import handlers_round
from integration.handler_process import POLICIES
from integration.member_histories import MODES, members_round
from integration.query_histories import query_round
from integration.runs import ROOT

__all__ = ["HISTORIES", "main", "modes_of"]

_SHOWN: Final = 20


class Round(Protocol):
    """Runs a history, and says what is wrong with it."""

    def __call__(
        self, where: Any, cluster: Any, seconds: float, chance: random.Random, folder: Path, /
    ) -> Verdict: ...


HISTORIES: Final[Mapping[str, Round]] = {
    **{mode: partial(members_round, mode) for mode in MODES},
    **{f"handlers, {policy}": partial(handlers_round, policy) for policy in POLICIES},
    "query": query_round,
}
"""By mode."""


def run(mode: str, minutes: float, seed: int, folder: Path) -> list[str]:
    """Run the histories of a mode on brokers of its own, and return what is wrong."""
    folder.mkdir(parents=True)
    print(f"{mode}: seed {seed}, in {folder}", flush=True)
    with (folder / "log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            with brokers_of(3, is_hard=True) as (where, cluster):
                chance = random.Random(seed)
                verdict = HISTORIES[mode](where, cluster, 60 * minutes, chance, folder)
        except Exception as error:
            traceback.print_exc(file=log)
            verdict = Verdict("not judged", [f"{type(error).__name__}: {error}"])
    print(f"  {verdict.text}")
    for fault in verdict.faults[:_SHOWN]:
        print(f"  {fault}")
    (folder / "faults").write_text("".join(f"{fault}\n" for fault in verdict.faults))
    return verdict.faults


def modes_of(name: str) -> list[str]:
    """The modes that a name means: the one that is called so, else all that have it in theirs."""
    return [name] if name in HISTORIES else [mode for mode in HISTORIES if name in mode]


def main(arguments: list[str]) -> int:
    """Run, and return 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="integration.histories")
    parser.add_argument("--mode", default="", help="its name, or a part of it; see --list")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--list", action="store_true", help="print the modes")
    given = parser.parse_args(arguments)
    modes = modes_of(given.mode)
    if given.list:
        print("\n".join(HISTORIES))
        return 0
    if not modes:
        parser.error(f"no mode has {given.mode!r} in its name: {', '.join(HISTORIES)}")
    seed = secrets.randbelow(1 << 30) if given.seed is None else given.seed
    folder = given.folder or ROOT / "soak" / f"histories-{seed}"
    faults = {}
    for mode in modes:
        place = folder / mode.replace(" ", "-").replace(",", "").replace("()", "")
        faults[mode] = len(run(mode, given.minutes, seed, place))
    for mode, count in faults.items():
        print(f"{mode}: {count} anomalies")
    return 1 if any(faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
