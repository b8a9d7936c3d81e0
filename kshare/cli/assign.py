"""``kshare assign``: try a task assignor on situations before a job is trusted to it.

Guarantees: one answer a case, in order; what cannot be read is said on standard error with its file
and line, and does not keep the other cases from their answers.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from kshare.assignment.cases import Case, CaseError, run_case
from kshare.assignment.interface.assignor import TaskAssignor
from kshare.assignment.loading import load_task_assignor
from kshare.cli.explain import explain_outcome

__all__ = ["run"]


def run(_: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code."""
    assignor = None
    if arguments.assignor is not None:
        try:
            assignor = load_task_assignor(arguments.assignor)
        except ValueError as error:
            sys.stderr.write(f"kshare assign: {error}\n")
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
            sys.stderr.write(f"kshare assign: {name} cannot be read: {error}\n")
            faults += 1
    return 2 if faults else 0


def _answer(name: str, file: TextIO, assignor: TaskAssignor | None, *, explain: bool) -> int:
    """Answer the cases of a file; how many could not be read."""
    faults = 0
    for where, fields in _cases(file):
        try:
            if isinstance(fields, json.JSONDecodeError):
                raise CaseError(f"no JSON: {fields.msg} at column {fields.colno}")
            outcome = run_case(Case.read(fields, assignor))
        except CaseError as error:
            sys.stderr.write(f"kshare assign: {name}:{where}: {error}\n")
            faults += 1
            continue
        if explain:
            sys.stdout.write(explain_outcome(fields, outcome))
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
    if isinstance(one, json.JSONDecodeError):
        lines = list(file)
        whole = _parse("".join([first, *lines]))
        if not isinstance(whole, json.JSONDecodeError):
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
        return json.loads(text.strip())
    except json.JSONDecodeError as error:
        return error
