"""A task assignor's answer in one situation: its validity and placement, also in other processes.

Answers under other hash seeds, where sets of processes and of names have other orders, cost two
Python processes, each with a run of the assignor for each situation.
"""

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.assignor import AssignmentError, TaskAssignment, TaskAssignor
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.utils import validate_task_assignment
from kshare.testing.situations import names

__all__ = [
    "BreachError",
    "Placement",
    "Source",
    "answer_of",
    "assignor_of",
    "check_equal",
    "hash_seed_breaches",
    "placement_of",
]

Placement: TypeAlias = dict[ProcessId, tuple[frozenset[TaskId], frozenset[TaskId]]]
"""The active and the standby tasks of each process."""
Source: TypeAlias = TaskAssignor | type[TaskAssignor] | Callable[[], TaskAssignor]
"""An assignor, or what makes one."""
_HASH_SEEDS = (1, 2)
_ELSEWHERE = "from kshare.testing.answers import _answer_here; _answer_here()"


class BreachError(Exception):
    """A law does not hold in a situation.

    Attributes:
        law: The law.
        what: What was seen instead.
        state: The situation.
    """

    def __init__(self, law: str, what: str, state: ApplicationState) -> None:
        super().__init__(what)
        self.law = law
        self.what = what
        self.state = state


def assignor_of(assignor: Source) -> TaskAssignor:
    """The assignor, made if need be."""
    # A class has the method, too; and an assignor need not inherit from the protocol.
    if isinstance(assignor, type) or not hasattr(assignor, "assign"):
        return assignor()
    return cast("TaskAssignor", assignor)


def answer_of(assignor: TaskAssignor, state: ApplicationState) -> TaskAssignment:
    """Ask an assignor once.

    Raises:
        BreachError: It does not answer, or its answer is not valid.
    """
    try:
        answer: object = assignor.assign(state)
    except Exception as error:
        raise BreachError("an answer is given", repr(error), state) from error
    if not isinstance(answer, TaskAssignment):
        what = f"the answer is a {type(answer).__name__}"
        raise BreachError("an answer is given", what, state)
    fault = validate_task_assignment(state, answer)
    if fault is not AssignmentError.NONE:
        raise BreachError("the answer is valid", fault.value, state)
    times = Counter(task for entry in answer.assignment for task in entry.active)
    for task in state.all_tasks:
        if times[task] != 1:
            what = f"task {task} is active {times[task]} times"
            raise BreachError("each task is active once", what, state)
    for entry in answer.assignment:
        for task in sorted(entry.standby):
            if not state.all_tasks[task].has_changelog:
                what = f"process {entry.process_id} has one of task {task}"
                raise BreachError("standbys are of tasks with a changelog", what, state)
    processes = Counter(entry.process_id for entry in answer.assignment)
    for process, count in processes.items():
        if count > 1:
            what = f"process {process} has {count}"
            raise BreachError("a process has one entry", what, state)
    return answer


def placement_of(answer: TaskAssignment) -> Placement:
    """The placement of an answer."""
    return {entry.process_id: (entry.active, entry.standby) for entry in answer.assignment}


def check_equal(law: str, state: ApplicationState, before: Placement, after: Placement) -> None:
    """Raise BreachError unless two placements are the same."""
    for process in sorted(before):
        for kind, was, is_ in zip(
            ("active", "standby"), before[process], after[process], strict=True
        ):
            if was != is_:
                what = f"process {process}, {kind}: first {names(was)}, then {names(is_)}"
                raise BreachError(law, what, state)


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
