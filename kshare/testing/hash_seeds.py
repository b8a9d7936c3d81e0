"""Check that a task assignor answers the same in Python processes with other hash seeds.

Sets of processes and of names have other orders there.
Cost: two Python processes, each with a run of the assignor for each situation.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import cast

from kshare.assignment.interface.application import ApplicationState
from kshare.testing.answers import (
    BreachError,
    Placement,
    Source,
    answer_of,
    assignor_of,
    check_equal,
    placement_of,
)

__all__ = ["hash_seed_breaches"]

_HASH_SEEDS = (1, 2)
_ELSEWHERE = "from kshare.testing.hash_seeds import _answer_here; _answer_here()"


def hash_seed_breaches(
    assignor: Source, states: Sequence[ApplicationState]
) -> dict[int, BreachError]:
    """Breaches where answers depend on Python's hash seed by the number of the situation.

    Raises:
        ValueError: The assignor cannot be pickled, or loaded in another process.
    """
    try:
        message = pickle.dumps((sys.path, pickle.dumps((assignor, states))))
    except Exception as error:
        raise ValueError(
            f"the assignor cannot be asked under other hash seeds: it cannot be pickled ({error}); "
            "wanted a class or an instance of one in a module"
        ) from error
    first, second = (_answers_under(seed, message) for seed in _HASH_SEEDS)
    breaches: dict[int, BreachError] = {}
    for number, (state, one, other) in enumerate(zip(states, first, second, strict=True)):
        try:
            if isinstance(one, str) or isinstance(other, str):
                what = one if isinstance(one, str) else str(other)
                raise BreachError("an answer is given", what, state)
            check_equal("the hash seed plays no part", state, one, other)
        except BreachError as breach:
            breaches[number] = breach
    return breaches


def _answers_under(seed: int, message: bytes) -> list[Placement | str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(  # noqa: S603 - this Python
        [sys.executable, "-c", _ELSEWHERE],
        input=message,
        env=environment,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(f"the assignor cannot be asked under other hash seeds: {said}")
    return cast("list[Placement | str]", pickle.loads(done.stdout))  # noqa: S301 - our own


def _answer_here() -> None:
    """Run in the other process: each situation's placement, or what went wrong."""
    # What an assignor prints is no answer.
    out, sys.stdout = sys.stdout, sys.stderr
    path, content = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
    sys.path[:] = path
    assignor, states = pickle.loads(content)  # noqa: S301 - from our own parent
    answers: list[Placement | str] = []
    for state in states:
        try:
            answers.append(placement_of(answer_of(assignor_of(assignor), state)))
        except BreachError as breach:
            answers.append(f"{breach.law}: {breach.what}")
    pickle.dump(answers, out.buffer)
