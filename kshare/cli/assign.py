"""``kshare assign``: try a task assignor on situations before a job is trusted to it.

Guarantees: one answer a case, in order; what cannot be read is said on standard error with its file
and line, and does not keep the other cases from their answers. ``--explain`` gives a reason for a
move only where lags, racks or loads show it.
Cost: apart from the assignor, linear in tasks and processes, and in the copies that moved.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias

from kshare.assignment.cases import Case, CaseError, Outcome, run_case
from kshare.assignment.interface.application import ApplicationState, KafkaStreamsState
from kshare.assignment.interface.assignor import (
    KafkaStreamsAssignment,
    TaskAssignment,
    TaskAssignor,
)
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.loading import load_task_assignor
from kshare.cli.output import complain, counted, say_block, text_table
from kshare.core.bounded_json import JsonBounds, read_json

__all__ = ["explain_outcome", "run"]

_BOUNDS: Final = JsonBounds(size=256 << 20, depth=32, containers=1 << 22)

_PREFIX_MAX = 8
"""A longer common beginning of names is left out."""
_SHOWN_MAX = 12
"""Maximum number of tasks listed for a process."""
_Rows: TypeAlias = list[tuple[str, ...]]
"""A table; the first row is the header."""


def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code."""
    assignor = None
    if arguments.assignor is not None:
        try:
            assignor = load_task_assignor(arguments.assignor)
        except ValueError as error:
            complain(f"kshare assign: {error}")
            return 2
    faults = 0
    for name in arguments.files or ["-"]:
        try:
            with (
                nullcontext(sys.stdin) if name == "-" else Path(name).open(encoding="utf-8")
            ) as file:
                shown = "<stdin>" if name == "-" else name
                faults += _answer(shown, file, assignor, explain=arguments.explain)
        except BrokenPipeError:  # of standard output: the file is in order
            raise
        except (OSError, UnicodeDecodeError) as error:
            complain(f"kshare assign: {name} cannot be read: {error}")
            faults += 1
    return 2 if faults else 0


def _answer(name: str, file: TextIO, assignor: TaskAssignor | None, *, explain: bool) -> int:
    """Answer the cases of a file; how many could not be read."""
    faults = 0
    for where, fields in _cases(file):
        try:
            if isinstance(fields, ValueError):
                raise CaseError(f"no JSON: {fields}")
            outcome = run_case(Case.read(fields, assignor))
        except CaseError as error:
            complain(f"kshare assign: {name}:{where}: {error}")
            faults += 1
            continue
        if explain:
            say_block(explain_outcome(fields, outcome))
        else:
            sys.stdout.write(json.dumps(outcome.answer) + "\n")
        sys.stdout.flush()
    return faults


def _cases(file: TextIO) -> Iterator[tuple[str, Any]]:
    """Cases and where they are; an error in place of a line that is no JSON.

    Lines are answered as they come. A first line that is no JSON by itself may begin a document
    of many lines.
    """
    first = ""
    number = 0
    for first in file:
        number += 1
        if first.strip():
            break
    if not first.strip():
        return
    one = _parse(first)
    rest = file
    if isinstance(one, ValueError):
        lines = list(file)
        whole = _parse("".join([first, *lines]))
        if not isinstance(whole, ValueError):
            yield from _members(str(number), whole)
            return
        rest = iter(lines)  # type: ignore[assignment]
    for at, line in enumerate(chain([first], rest), start=number):
        if line.strip():
            yield from _members(str(at), _parse(line))


def _members(where: str, parsed: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(parsed, dict) and isinstance(parsed.get("cases"), list):
        for index, one in enumerate(parsed["cases"]):
            id_ = one.get("id") if isinstance(one, dict) else None
            yield f"{where}: case {index}" + (f" ({id_})" if id_ else ""), one
    else:
        yield where, parsed


def _parse(text: str) -> Any:
    try:
        return read_json(text.strip(), _BOUNDS)
    except ValueError as error:
        return error


def explain_outcome(fields: Mapping[str, Any], outcome: Outcome) -> str:
    """A case's outcome for people.

    Args:
        fields: The case as JSON.
        outcome: What the assignor answered.
    """
    parts = [f"{fields.get('id', '')}  {fields.get('description', '')}".rstrip() + "\n"]
    if outcome.state is None or outcome.after is None:
        rest = {name: value for name, value in outcome.answer.items() if name != "id"}
        parts.append(json.dumps(rest) + "\n")
    else:
        explained = _Explained(outcome.state, outcome.before, outcome.after)
        tables = (explained.processes(), explained.moves(), explained.figures())
        parts.append("\n".join(map(text_table, tables)))
        if outcome.after.wants_followup:
            parts.append("Another rebalance is asked for: not all is yet where it is wanted.\n")
    return "".join([*parts, "\n"])


class _Explained:
    """An assignment beside the one before."""

    def __init__(
        self,
        state: ApplicationState,
        before: Mapping[ProcessId, KafkaStreamsAssignment],
        after: TaskAssignment,
    ) -> None:
        self._state = state
        nothing = {process: KafkaStreamsAssignment(process) for process in state.states}
        self._before = {**nothing, **before}
        self._after = {**nothing, **after.by_process}
        self._names = _short_names([*self._before, *self._after])
        self._owner = {
            task: process for process, had in self._before.items() for task in had.active
        }

    def processes(self) -> _Rows:
        """The tasks of each process."""
        rows: _Rows = [("process", "rack", "threads", "active", "standby", "load", "tasks")]
        for process, state in self._state.states.items():
            has, had = self._after[process], self._before[process]
            standby = _listed(map(str, sorted(has.standby)))
            rows.append(
                (
                    self._names[process],
                    state.rack_id or "",
                    str(state.num_processing_threads),
                    _change(len(had.active), len(has.active)),
                    _change(len(had.standby), len(has.standby)),
                    f"{(len(has.active) + len(has.standby)) / state.num_processing_threads:.2f}",
                    _listed(map(str, sorted(has.active))) + (f" ({standby})" if standby else ""),
                )
            )
        return rows

    def moves(self) -> _Rows:
        """The tasks that moved, with the reason."""
        names = self._names
        rows: list[tuple[TaskId, str, str, str, str]] = []
        for process, has in self._after.items():
            had, name = self._before[process], names[process]
            for task in has.active - had.active:
                source = self._owner.get(task)
                why = self._why_active(task, source, process)
                rows.append((task, "active", "" if source is None else names[source], name, why))
            for task in has.standby - had.standby:
                why = "was active there" if task in had.active else self._why_standby(task)
                rows.append((task, "standby", "", name, why))
            left = had.standby - has.standby - has.active
            rows += [(task, "standby", name, "", "not wanted there any more") for task in left]
        shown = [(str(task), *rest) for task, *rest in sorted(rows)]
        return [("task", "as", "from", "to", "why"), *(shown or [("nothing", "", "", "", "")])]

    def _why_active(self, task: TaskId, source: ProcessId | None, to: ProcessId) -> str:
        had_copy = task in self._before[to].standby
        warm = "; it has a copy" if had_copy else ""
        if source is None:
            return f"no process has it active{warm}"
        if source not in self._state.states:
            return f"its process is gone{warm}"
        reasons = [*self._by_lag(task, source, to), *self._by_rack(task, source, to)]
        load, there = self._load(source), self._load(to)
        if load > there:
            reasons.append(f"{load:.2f} active tasks a thread there, {there:.2f} here")
        if had_copy:
            reasons.append("it has a copy")
        return "; ".join(reasons) or "the assignor's choice: equally good"

    def _by_lag(self, task: TaskId, source: ProcessId, to: ProcessId) -> Iterable[str]:
        lags = [self._state.states[process].task_lags or {} for process in (source, to)]
        if task in lags[0] and task in lags[1] and lags[1][task] < lags[0][task]:
            yield f"lag {_lag(lags[0][task])} there, {_lag(lags[1][task])} here"

    def _by_rack(self, task: TaskId, source: ProcessId, to: ProcessId) -> Iterable[str]:
        states = self._state.states
        crossing = [self._crossing(task, states[process], active=True) for process in (source, to)]
        if crossing[0] is not None and crossing[1] is not None and crossing[1] < crossing[0]:
            there = counted(crossing[0], "partition")
            yield f"reads {there} from other racks there, {crossing[1]} here"

    def _why_standby(self, task: TaskId) -> str:
        copies = sum(task in entry.standby for entry in self._after.values())
        wanted = max(0, self._state.assignment_configs.num_standby_replicas)
        if copies > wanted:
            return f"warms up, or stands by: {copies} copies where {wanted} are configured"
        return "stands by"

    def _load(self, process: ProcessId) -> float:
        """Active tasks a thread, before."""
        threads = self._state.states[process].num_processing_threads
        return len(self._before[process].active) / threads

    def figures(self) -> _Rows:
        """Traffic and balance."""
        before, after = self._figures(self._before), self._figures(self._after)
        moved = sum(
            task not in self._before[process].active and self._owner.get(task) is not None
            for process, has in self._after.items()
            for task in has.active
        )
        cold = sum(
            task not in self._before[process].active | self._before[process].standby
            for process, has in self._after.items()
            for task in has.active
        )
        return [
            ("", "before", "after"),
            *((name, value, after[name]) for name, value in before.items()),
            ("active tasks that moved", "", str(moved)),
            ("active tasks without a copy there", "", str(cold)),
        ]

    def _figures(self, assigned: Mapping[ProcessId, KafkaStreamsAssignment]) -> dict[str, str]:
        states = self._state.states
        threads = {process: state.num_processing_threads for process, state in states.items()}
        active = [len(assigned[process].active) / threads[process] for process in states]
        both = [
            (len(assigned[process].active) + len(assigned[process].standby)) / threads[process]
            for process in states
        ]
        subtopologies: dict[int, Counter[ProcessId]] = {}
        for process in states:
            for task in assigned[process].active:
                subtopologies.setdefault(task[0], Counter())[process] += 1
        skews = [
            max(counts[process] for process in states) - min(counts[process] for process in states)
            for counts in subtopologies.values()
        ]
        traffic = [
            self._crossing(task, states[process], active=task in assigned[process].active)
            for process in states
            for task in assigned[process].active | assigned[process].standby
            if task in self._state.all_tasks
        ]
        known = [partitions for partitions in traffic if partitions is not None]
        return {
            "active tasks a thread, most - least": _spread(active),
            "all tasks a thread, most - least": _spread(both),
            "of one subtopology, most - least": str(max(skews, default=0)),
            "partitions read from another rack": (
                str(sum(known)) if len(known) == len(traffic) else "racks are not known"
            ),
        }

    def _crossing(self, task: TaskId, process: KafkaStreamsState, *, active: bool) -> int | None:
        """Partitions that a process reads from other racks for a task; None if not known."""
        info = self._state.all_tasks.get(task)
        if info is None or process.rack_id is None:
            return None
        crossing = 0
        for partition in info.topic_partitions:
            if active or partition.is_changelog:
                racks = partition.rack_ids
                if racks is None:
                    return None
                crossing += process.rack_id not in racks
        return crossing


def _short_names(processes: Iterable[ProcessId]) -> dict[ProcessId, str]:
    """Names without what all of them begin with: UUIDs fill a table."""
    names = {process: str(process) for process in processes}
    lowest, highest = min(names.values(), default=""), max(names.values(), default="")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(lowest, highest, strict=False))
    cut = len(list(same)) if len(names) > 1 else 0
    if cut <= _PREFIX_MAX:
        return names
    return {process: "..." + name[cut - 1 :] for process, name in names.items()}


def _change(before: int, after: int) -> str:
    return str(after) if before == after else f"{before} -> {after}"


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = len(shown) - _SHOWN_MAX
    return " ".join(shown[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def _lag(lag: int) -> str:
    return {-2: "none (it runs)", -3: "unknown"}.get(lag, f"{lag:,}")


def _spread(loads: list[float]) -> str:
    return f"{max(loads) - min(loads):.2f}" if loads else ""
