"""``check_assignor``: the laws that any task assignor must meet, for authors of their own.

Guarantees: a situation that breaks a law is reported as a case for ``kshare assign``, with all that
is needed to try it again. Equal arguments give equal reports, if the assignor is pure.
Cost: four runs of the assignor for each situation, and one for each round of convergence. Other
hash seeds: see :mod:`.situations`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.assignor import (
    KafkaStreamsAssignment,
    TaskAssignment,
    TaskAssignor,
)
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.testing.situations import (
    BreachError,
    Source,
    answer_of,
    as_case,
    assignor_of,
    check_equal,
    hash_seed_breaches,
    placement_of,
    reordered,
    situations,
)

__all__ = ["AssignorReport", "Breach", "check_assignor"]


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
        """True if every law holds in every situation."""
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


def check_assignor(
    assignor: Source,
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
      with fewer tasks than threads, at most one task a thread more (the sticky assignor leaves
      these where they were, even if others idle).
    - Then a further run changes nothing, after a few runs that racks may need to settle.
    - Shared tasks of a partition are together, unless racks play a part: they need few state
      stores (one serves all tasks of a partition on a process), both from a fresh start and from
      such a placement on other processes. Where all processes have as many threads, and each holds
      as many shared tasks as whole partitions have, these are whole partitions: active tasks need
      one store for each partition, standbys (without client tags) one for each partition and
      standby. Otherwise loads cut partitions, and may need one more for each process but one;
      standbys keep off active copies, too, and may need two more for each process, or three
      where threads differ.

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
        ValueError: Other hash seeds are asked for, and the assignor cannot be pickled or loaded in
            another process.
    """
    asked = list(situations() if states is None else states)
    breaches: dict[int, BreachError] = {}
    for number, state in enumerate(asked):
        try:
            _check(assignor, state, spread_max, rounds_max, settles)
            if together:
                _check_together(assignor, state, rounds_max)
        except BreachError as breach:
            breaches[number] = breach
    if other_hash_seeds:
        breaches = hash_seed_breaches(assignor, asked) | breaches
    breached = (breaches[number] for number in sorted(breaches))
    return AssignorReport(
        len(asked), tuple(Breach(one.law, one.what, as_case(one.state)) for one in breached)
    )


def _check(
    assignor: Source,
    state: ApplicationState,
    spread_max: float | None,
    rounds_max: int | None,
    settles: bool,
) -> None:
    made = assignor_of(assignor)
    answer = answer_of(made, state)
    _equal("equal situations, equal answers", state, answer, answer_of(made, state))
    again = answer_of(assignor_of(assignor), reordered(state, seed=0))
    _equal("the order of sets plays no part", state, answer, again)
    state, answer = _rested(made, state, answer, rounds_max)
    if spread_max is not None:
        _check_balance(state, answer, spread_max)
    if settles:
        # What moved for racks or loads may need a run to settle; from then on nothing moves.
        for _ in range(3):
            state = _caught_up(state, answer)
            last, answer = answer, answer_of(made, state)
            if placement_of(last) == placement_of(answer):
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
        answer = answer_of(assignor, state)
    if rounds and answer.wants_followup:
        what = f"a follow-up is asked for after {rounds} rounds"
        raise BreachError("rebalances come to an end", what, state)
    return state, answer


def _copies(state: ApplicationState) -> int:
    """The number of copies of tasks with a changelog, when all are placed."""
    logged = sum(info.has_changelog for info in state.all_tasks.values())
    return logged * (1 + max(0, state.assignment_configs.num_standby_replicas))


def _equal(law: str, state: ApplicationState, one: TaskAssignment, other: TaskAssignment) -> None:
    check_equal(law, state, placement_of(one), placement_of(other))


def _caught_up(state: ApplicationState, answer: TaskAssignment) -> ApplicationState:
    """The state at the next rebalance: all copies have caught up, and there are no others."""
    placed = placement_of(answer)
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
    placed = placement_of(answer)
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
            raise BreachError("active loads are even", what, state)


def _check_together(assignor: Source, state: ApplicationState, rounds_max: int | None) -> None:
    """Check shared tasks, from a fresh start and from a good placement on other processes."""
    is_rack_aware = state.assignment_configs.rack_aware_assignment_strategy != "none"
    if is_rack_aware or all(task.key_range is None for task in state.all_tasks):
        return
    made = assignor_of(assignor)
    nothing = TaskAssignment(tuple(map(KafkaStreamsAssignment, state.states)))
    state = _caught_up(state, nothing)
    for _ in range(2):
        state, answer = _rested(made, state, answer_of(made, state), rounds_max)
        _check_stores(state, answer)
        state = _caught_up(state, _rotated(state, answer))


def _rotated(state: ApplicationState, answer: TaskAssignment) -> TaskAssignment:
    """The same placement, with each process's tasks on the next one with as many threads."""
    placed = placement_of(answer)
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
    """Count the state stores that shared tasks need.

    The bounds are no tighter, since the high-availability assignor needs as many: for active tasks
    where just two of eight processes hold parts of partitions, for standbys where both kinds are
    cut (8 ranges, 4 partitions, 3 processes), and more than two a process where threads differ.
    """
    configs, processes = state.assignment_configs, len(state.states)
    standbys = max(0, min(configs.num_standby_replicas, processes - 1))
    placed = placement_of(answer)
    for is_logged in (True, False):
        tasks = {
            task
            for task, info in state.all_tasks.items()
            if task.key_range is not None and info.has_changelog == is_logged
        }
        if not tasks:
            continue
        active = [placed[process][0] & tasks for process in placed]
        standby = [placed[process][1] & tasks for process in placed]
        partitions = len({task[:2] for task in tasks})
        cuts = not _may_be_whole(state, tasks, active)
        more = 2 if _are_alike(state) else 3
        kinds = [("active", active, partitions + cuts * (processes - 1))]
        if is_logged and not configs.rack_aware_assignment_tags:
            cuts |= not _may_be_whole(state, tasks, standby)
            kinds.append(("standby", standby, partitions * standbys + cuts * more * processes))
        for kind, held, most in kinds:
            stores = sum(len({task[:2] for task in on}) for on in held)
            if stores > most:
                what = (
                    f"the {kind} shared tasks of {partitions} partitions need {stores} stores on "
                    f"{processes} processes; wanted at most {most}"
                )
                raise BreachError("shared tasks of a partition are together", what, state)


def _may_be_whole(
    state: ApplicationState, tasks: AbstractSet[TaskId], held: Iterable[AbstractSet[TaskId]]
) -> bool:
    """True if as many tasks as processes hold can be those of whole partitions.

    Not where threads differ: even then the built-in assignors do cut some.
    """
    ranges = set(Counter(task[:2] for task in tasks).values())
    return (
        _are_alike(state)
        and len(ranges) == 1
        and not any(len(on) % size for on in held for size in ranges)
    )


def _are_alike(state: ApplicationState) -> bool:
    """True if all processes have as many threads."""
    return len({one.num_processing_threads for one in state.states.values()}) == 1
