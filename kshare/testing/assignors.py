"""``check_assignor``: the laws that any task assignor must meet, for authors of their own.

Guarantees: a situation that breaks a law is reported as a case for ``kshare assign``, with all that
is needed to try it again. Equal arguments give equal reports, if the assignor is pure.
Cost: four runs of the assignor for each situation, and one for each round of convergence. Other
hash seeds: two Python processes, each with a run for each situation.
"""

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any, TypeAlias, cast

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.assignor import (
    AssignmentError,
    KafkaStreamsAssignment,
    TaskAssignment,
    TaskAssignor,
)
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.utils import validate_task_assignment
from kshare.testing.situations import as_case, names, reordered, situations

__all__ = ["AssignorReport", "Breach", "check_assignor"]

_Placed: TypeAlias = dict[ProcessId, tuple[frozenset[TaskId], frozenset[TaskId]]]
_Source: TypeAlias = TaskAssignor | type[TaskAssignor] | Callable[[], TaskAssignor]

_HASH_SEEDS = (1, 2)
_ELSEWHERE = "from kshare.testing.assignors import _answer_here; _answer_here()"


@dataclass(frozen=True, slots=True)
class Breach:
    """A law that does not hold in a situation.

    Attributes:
        law: The law.
        what: What was seen instead.
        case: The situation, as a case for ``kshare assign``.
    """

    law: str
    what: str
    case: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.law}: {self.what}\n  {json.dumps(self.case)}"


@dataclass(frozen=True, slots=True)
class AssignorReport:
    """The result of :func:`check_assignor`; print it to read it.

    Attributes:
        checked: Number of situations.
        breaches: Laws that do not hold, at most one for each situation.
    """

    checked: int
    breaches: tuple[Breach, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether every law holds in every situation."""
        return not self.breaches

    def __str__(self) -> str:
        if self.is_valid:
            return f"{self.checked} situations, all laws hold"
        laws = Counter(breach.law for breach in self.breaches)
        lines = [f"{self.checked} situations, {len(self.breaches)} of them break a law:"]
        lines += [f"- {law}: {count}" for law, count in laws.most_common()]
        # The smallest one says most.
        smallest = min(self.breaches, key=lambda breach: len(json.dumps(breach.case)))
        return "\n".join([*lines, "the smallest one, for `kshare assign`:", str(smallest)])


class _BreachError(Exception):
    def __init__(self, law: str, what: str, state: ApplicationState) -> None:
        super().__init__(what)
        self.law = law
        self.what = what
        self.state = state


def check_assignor(
    assignor: _Source,
    states: Iterable[ApplicationState] | None = None,
    *,
    spread_max: float | None = 0.0,
    rounds_max: int | None = None,
    settles: bool = True,
    together: bool = True,
    other_hash_seeds: bool = False,
) -> AssignorReport:
    """Check an assignor against the laws, in each situation by itself.

    - Each task is active on exactly one process, and every task and process is known.
    - Standbys are of tasks with a changelog, and a process has at most one copy of a task.
    - The same situation gets the same answer when it is asked again.
    - So does an equal situation whose sets and dicts were built in another order. Tasks and
      processes stay ascending.
    - Rebalances come to an end: copies catch up, and after some rounds there is no follow-up.
    - Then loads are as even as Kafka's two assignors make them. Of any two processes, one has at
      most as many active tasks a thread more as one task makes on the process with fewer threads;
      with fewer tasks than threads, at most one task a thread more (the sticky assignor leaves so
      many where they were, even if others idle).
    - Then a further run changes nothing, after a few runs that racks may need to settle.
    - Shared tasks of a partition are together, unless racks play a part: they need few state
      stores (one serves all tasks of a partition on a process), both from a fresh start and from
      such a placement on other processes. Active tasks need at most one store for each partition,
      and one more for each process but one, since even loads cut partitions. Standbys, without
      client tags, need at most one for each partition and standby, and three more for each process.

    Args:
        assignor: An assignor, or a class or function that makes one for each situation.
        states: The situations; None: the first hundred of :func:`situations`.
        spread_max: Maximum allowed difference in active tasks per thread between two processes, if
            that is more than Kafka's assignors need; None for no limit.
        rounds_max: Maximum number of follow-ups; None: one for each copy that may have to warm up;
            0: there may be one each time.
        settles: Whether a further run must change nothing. False for an assignor that rotates tasks
            on purpose.
        together: Whether shared tasks of a partition must be together. False for an assignor with
            no use for common state stores or common fetches.
        other_hash_seeds: Whether to ask in Python processes with other hash seeds, too, where sets
            of processes and of names have other orders. The assignor must be picklable, such as a
            class in a module.

    Returns:
        A report; assert its ``is_valid``, and print it if that fails.

    Raises:
        ValueError: other hash seeds are asked for, and the assignor cannot be pickled or loaded in
            another process.
    """
    asked = list(situations() if states is None else states)
    breaches: dict[int, _BreachError] = {}
    for number, state in enumerate(asked):
        try:
            _check(assignor, state, spread_max, rounds_max, settles)
            if together:
                _check_together(assignor, state, rounds_max)
        except _BreachError as breach:
            breaches[number] = breach
    if other_hash_seeds:
        breaches = _check_hash_seeds(assignor, asked) | breaches
    breached = (breaches[number] for number in sorted(breaches))
    return AssignorReport(
        len(asked), tuple(Breach(one.law, one.what, as_case(one.state)) for one in breached)
    )


def _check(
    assignor: _Source,
    state: ApplicationState,
    spread_max: float | None,
    rounds_max: int | None,
    settles: bool,
) -> None:
    made = _made(assignor)
    answer = _run(made, state)
    _equal("equal situations, equal answers", state, answer, _run(made, state))
    again = _run(_made(assignor), reordered(state, seed=0))
    _equal("the order of sets plays no part", state, answer, again)
    state, answer = _rested(made, state, answer, rounds_max)
    if spread_max is not None:
        _check_balance(state, answer, spread_max)
    if settles:
        # What moved for racks or loads may need a run to settle; from then on nothing moves.
        for _ in range(3):
            state = _caught_up(state, answer)
            last, answer = answer, _run(made, state)
            if _placed(last) == _placed(answer):
                return
            if spread_max is not None:
                _check_balance(state, answer, spread_max)
        _equal("a further run changes nothing", state, last, answer)


def _rested(
    assignor: TaskAssignor, state: ApplicationState, answer: TaskAssignment, rounds_max: int | None
) -> tuple[ApplicationState, TaskAssignment]:
    """The state and answer of the last follow-up rebalance, when none is asked for any more."""
    rounds = _copies(state) + 2 if rounds_max is None else rounds_max
    for _ in range(rounds):
        if not answer.wants_followup:
            break
        state = _caught_up(state, answer)
        answer = _run(assignor, state)
    if rounds and answer.wants_followup:
        what = f"a follow-up is asked for after {rounds} rounds"
        raise _BreachError("rebalances come to an end", what, state)
    return state, answer


def _made(assignor: _Source) -> TaskAssignor:
    # A class has the method, too; and an assignor need not inherit from the protocol.
    if isinstance(assignor, type) or not hasattr(assignor, "assign"):
        return assignor()
    return cast("TaskAssignor", assignor)


def _copies(state: ApplicationState) -> int:
    """The number of copies of tasks with a changelog, when all are placed."""
    logged = sum(info.has_changelog for info in state.all_tasks.values())
    return logged * (1 + max(0, state.assignment_configs.num_standby_replicas))


def _run(assignor: TaskAssignor, state: ApplicationState) -> TaskAssignment:
    try:
        answer: object = assignor.assign(state)
    except Exception as error:
        raise _BreachError("an answer is given", repr(error), state) from error
    if not isinstance(answer, TaskAssignment):
        what = f"the answer is a {type(answer).__name__}"
        raise _BreachError("an answer is given", what, state)
    fault = validate_task_assignment(state, answer)
    if fault is not AssignmentError.NONE:
        raise _BreachError("the answer is valid", fault.value, state)
    times = Counter(task for entry in answer.assignment for task in entry.active)
    for task in state.all_tasks:
        if times[task] != 1:
            what = f"task {task} is active {times[task]} times"
            raise _BreachError("each task is active once", what, state)
    for entry in answer.assignment:
        for task in sorted(entry.standby):
            if not state.all_tasks[task].has_changelog:
                what = f"process {entry.process_id} has one of task {task}"
                raise _BreachError("standbys are of tasks with a changelog", what, state)
    processes = Counter(entry.process_id for entry in answer.assignment)
    for process, count in processes.items():
        if count > 1:
            what = f"process {process} has {count}"
            raise _BreachError("a process has one entry", what, state)
    return answer


def _equal(law: str, state: ApplicationState, one: TaskAssignment, other: TaskAssignment) -> None:
    _equally_placed(law, state, _placed(one), _placed(other))


def _equally_placed(law: str, state: ApplicationState, before: _Placed, after: _Placed) -> None:
    for process in sorted(before):
        for kind, was, is_ in zip(
            ("active", "standby"), before[process], after[process], strict=True
        ):
            if was != is_:
                what = f"process {process}, {kind}: first {names(was)}, then {names(is_)}"
                raise _BreachError(law, what, state)


def _placed(answer: TaskAssignment) -> _Placed:
    return {entry.process_id: (entry.active, entry.standby) for entry in answer.assignment}


def _caught_up(state: ApplicationState, answer: TaskAssignment) -> ApplicationState:
    """The state at the next rebalance: all copies have caught up, and there are no others."""
    placed = _placed(answer)
    end_lags = {
        task: max((one.task_lags or {}).get(task, 0) for one in state.states.values())
        for task, info in state.all_tasks.items()
        if info.has_changelog
    }
    states = {}
    for process, one in state.states.items():
        active, standby = placed[process]
        lags = {
            task: 0 if task in active or task in standby else max(end, 1)
            for task, end in end_lags.items()
        }
        states[process] = replace(
            one, previous_active_tasks=active, previous_standby_tasks=standby, task_lags=lags
        )
    return replace(state, states=states)


def _check_balance(state: ApplicationState, answer: TaskAssignment, spread_max: float) -> None:
    """Compare any two processes by their active tasks a thread.

    One task of the process with fewer threads is always allowed: it has to be somewhere. With fewer
    tasks than threads, Kafka's sticky assignor leaves up to one task a thread where it was.
    """
    threads_in_all = sum(one.num_processing_threads for one in state.states.values())
    are_few = len(state.all_tasks) < threads_in_all
    placed = _placed(answer)
    ends: dict[int, tuple[int, ProcessId, int, ProcessId]] = {}
    for process, one in sorted(state.states.items()):
        threads, tasks = one.num_processing_threads, len(placed[process][0])
        most, by, least, of = ends.get(threads, (tasks, process, tasks, process))
        # Of those with as many threads, only the most and the least loaded one matter.
        if tasks > most:
            most, by = tasks, process
        if tasks < least:
            least, of = tasks, process
        ends[threads] = most, by, least, of
    for (many, (most, by, _, _)), (few, (_, _, least, of)) in product(ends.items(), repeat=2):
        apart = Fraction(most, many) - Fraction(least, few)
        step = Fraction(1, 1 if are_few else min(many, few))
        if apart > max(step, Fraction(spread_max)):
            what = (
                f"process {by} has {most / many:.2f} active tasks a thread, "
                f"process {of} {least / few:.2f}"
            )
            raise _BreachError("active loads are even", what, state)


def _check_together(assignor: _Source, state: ApplicationState, rounds_max: int | None) -> None:
    """Check shared tasks, from a fresh start and from a good placement on other processes."""
    is_rack_aware = state.assignment_configs.rack_aware_assignment_strategy != "none"
    if is_rack_aware or all(task.key_range is None for task in state.all_tasks):
        return
    made = _made(assignor)
    nothing = TaskAssignment(tuple(map(KafkaStreamsAssignment, state.states)))
    state = _caught_up(state, nothing)
    for _ in range(2):
        state, answer = _rested(made, state, _run(made, state), rounds_max)
        _check_stores(state, answer)
        state = _caught_up(state, _rotated(state, answer))


def _rotated(state: ApplicationState, answer: TaskAssignment) -> TaskAssignment:
    """The same placement, with each process's tasks on the next one with as many threads."""
    placed = _placed(answer)
    alike: dict[int, list[ProcessId]] = {}
    for process, one in state.states.items():
        alike.setdefault(one.num_processing_threads, []).append(process)
    return TaskAssignment(
        tuple(
            KafkaStreamsAssignment(process, *placed[other])
            for group in alike.values()
            for process, other in zip(group, [*group[1:], group[0]], strict=True)
        )
    )


def _check_stores(state: ApplicationState, answer: TaskAssignment) -> None:
    configs, processes = state.assignment_configs, len(state.states)
    standbys = max(0, min(configs.num_standby_replicas, processes - 1))
    placed = _placed(answer)
    for is_logged in (True, False):
        tasks = {
            task
            for task, info in state.all_tasks.items()
            if task.key_range is not None and info.has_changelog == is_logged
        }
        partitions = len({task[:2] for task in tasks})
        allowed = {"active": partitions + processes - 1}
        if is_logged and not configs.rack_aware_assignment_tags:
            allowed["standby"] = partitions * standbys + 3 * processes
        for kind, most in allowed.items():
            held = [placed[process][kind == "standby"] & tasks for process in placed]
            stores = sum(len({task[:2] for task in on}) for on in held)
            if tasks and stores > most:
                what = (
                    f"the {kind} shared tasks of {partitions} partitions need {stores} stores on "
                    f"{processes} processes; wanted at most {most}"
                )
                raise _BreachError("shared tasks of a partition are together", what, state)


# -- other hash seeds ----------------------------------------------------------------------------


def _check_hash_seeds(
    assignor: _Source, states: Sequence[ApplicationState]
) -> dict[int, _BreachError]:
    """The breaches by the number of the situation."""
    try:
        message = pickle.dumps((sys.path, pickle.dumps((assignor, states))))
    except Exception as error:
        raise ValueError(
            f"the assignor cannot be asked under other hash seeds: it cannot be pickled ({error}); "
            "wanted a class or an instance of one in a module"
        ) from error
    first, second = (_answers_under(seed, message) for seed in _HASH_SEEDS)
    breaches: dict[int, _BreachError] = {}
    for number, (state, one, other) in enumerate(zip(states, first, second, strict=True)):
        try:
            if isinstance(one, str) or isinstance(other, str):
                what = one if isinstance(one, str) else str(other)
                raise _BreachError("an answer is given", what, state)
            _equally_placed("the hash seed plays no part", state, one, other)
        except _BreachError as breach:
            breaches[number] = breach
    return breaches


def _answers_under(seed: int, message: bytes) -> list[_Placed | str]:
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
    return cast("list[_Placed | str]", pickle.loads(done.stdout))  # noqa: S301 - our own


def _answer_here() -> None:
    """What runs in the other process: each situation's placement, or what went wrong."""
    # What an assignor prints is no answer.
    out, sys.stdout = sys.stdout, sys.stderr
    path, content = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
    sys.path[:] = path
    assignor, states = pickle.loads(content)  # noqa: S301 - from our own parent
    answers: list[_Placed | str] = []
    for state in states:
        try:
            answers.append(_placed(_run(_made(assignor), state)))
        except _BreachError as breach:
            answers.append(f"{breach.law}: {breach.what}")
    pickle.dump(answers, out.buffer)
