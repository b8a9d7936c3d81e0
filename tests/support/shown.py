"""What tests have shown, and the page that says it: ``python -m tests.support.shown FOLDER``.

Every number comes from the runs whose results are in the folder (``pytest --results``).
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path

from integration.proof import PROOF
from kshare.testing import OrderReport
from tests.support import results
from tests.support.results import Results, show

_KILLED = "killed: "
_LOST, _DOUBLED, _DISORDERED = "lost", "doubled", "out of order"


def killed(what: str, count: int = 1) -> None:
    """Note processes that were killed (kill -9), such as ``Spark driver``."""
    show(f"{_KILLED}{what}", count)


def judged(report: OrderReport, *, has_order: bool = True) -> None:
    """Note the verdict over what a sink has received, before it is asserted."""
    disorder = report.out_of_order if has_order else ()
    outputs(report.records, report.lost, report.duplicated, disorder)


def outputs(records: int, lost: Sized = (), doubled: Sized = (), out_of_order: Sized = ()) -> None:
    """Note a verdict: how many records there were, and the faults in them."""
    show("records", records)
    for what, found in ((_LOST, lost), (_DOUBLED, doubled), (_DISORDERED, out_of_order)):
        show(what, len(found))


def explored(states: int, broken: object) -> None:
    """Note how many states of a small world were looked at, and the law that is broken in one."""
    show("states", states)
    show("laws broken", bool(broken))


def no_law_is_broken(walk: Callable[[int], object], seeds: Iterable[int]) -> None:
    """Take random walks, each by its seed. AssertionError: one of them breaks a law."""
    for seed in seeds:
        broken = walk(seed)
        show("walks")
        show("laws broken", bool(broken))
        assert not broken, f"seed {seed}: {broken}"


def is_found(found: object) -> bool:
    """Note a fault that was put into the code, and return whether it was found."""
    show("faults put in")
    show("faults found", bool(found))
    return bool(found)


def page(total: Results) -> Iterator[str]:
    """Say what was shown, in plain lines."""
    passed, shown = set(total.passed) - set(total.failed), total.shown
    yield "What was shown"
    for what, tests in PROOF.items():
        yield f"  {len(passed.intersection(tests)):3} of {len(tests):2}  {what}"
    kills = {k.removeprefix(_KILLED): n for k, n in shown.items() if k.startswith(_KILLED)}
    if kills:
        each = ", ".join(f"{what} {count}" for what, count in sorted(kills.items()))
        yield f"  killed (kill -9) {sum(kills.values())} processes: {each}"
    if shown["records"]:
        faults = _said(shown, (_LOST, _DOUBLED, _DISORDERED))
        yield f"  judged {shown['records']:,} records: {faults}"
    if shown["states"] or shown["walks"]:
        yield (
            f"  explored {shown['states']:,} states and {shown['walks']:,} random walks of groups: "
            f"{_said(shown, ('laws broken',))}"
        )
        found, put_in = shown["faults found"], shown["faults put in"]
        yield f"  put {put_in} faults into them: {found} were found"
    if shown["properties"]:
        faults = _said(shown, ("falsified",))
        yield f"  tried {shown['properties']} laws with generated examples: {faults}"
    yield f"  passed {len(passed):,} tests, failed {len(total.failed)}"
    yield from (f"  FAILED {name}" for name in total.failed[:20])


def _said(shown: Mapping[str, int], faults: Sequence[str]) -> str:
    return ", ".join(f"{what} {shown.get(what, 0)}" for what in faults)


if __name__ == "__main__":
    print("\n".join(page(results.read(Path(sys.argv[1])))))
