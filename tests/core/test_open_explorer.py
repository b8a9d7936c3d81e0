"""The laws of open batches: every interleaving of a small world, walks, and faults put in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import NO_HASHES
from kshare.core.open_batch import RangeReader, Step, no_ends, open_ranges, reached
from kshare.core.open_entry import OpenRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd, RangeEnds, RangeId
from spark_plugin.plain_reader import LoggedEnd
from tests.core import open_world
from tests.core.open_explorer import (
    DEEP,
    EARLY,
    HASTY,
    PARKING,
    ended_world,
    explore,
    follow,
    new_world,
    running_world,
    walk,
)
from tests.core.open_world import Driver, OpenWorld, WorldLimits
from tests.group.protocol.interleavings import seeds
from tests.group.protocol.world import Step as Happens
from tests.support.effort import depth, examples, least, walks
from tests.support.shown import explored, is_found, no_law_is_broken

Patch = Callable[[pytest.MonkeyPatch], None]
BUSY = WorldLimits(parks=1, abandons=1)


@pytest.mark.deep
@pytest.mark.parametrize("limits", [WorldLimits(), BUSY], ids=["whole", "few rows"])
@pytest.mark.parametrize("start", [running_world, ended_world], ids=["reading", "over"])
def test_every_interleaving(start: Callable[[], OpenWorld], limits: WorldLimits) -> None:
    states, broken = explore(limits, depth(5), start())
    explored(states, broken)
    assert not broken
    assert states > least(2_000)


def test_every_interleaving_from_the_start() -> None:
    states, broken = explore(WorldLimits(), depth(7), new_world(2))
    explored(states, broken)
    assert not broken
    assert states > least(40)


WALKS = {"deaths": DEEP, "parked": PARKING, "few rows": EARLY, "sealed while it runs": HASTY}


@pytest.mark.parametrize("limits", WALKS.values(), ids=WALKS)
def test_random_walks(limits: WorldLimits) -> None:
    no_law_is_broken(lambda seed: walk(limits, seed), walks(200))


@examples(100)
@given(st.lists(st.integers(0, 1 << 16), max_size=120), st.sampled_from([*WALKS.values()]))
def test_any_way_keeps_the_laws(choices: list[int], limits: WorldLimits) -> None:
    left = iter(choices)

    def choose(possible: list[Happens]) -> Happens | None:
        number = next(left, None)
        return None if number is None else possible[number % len(possible)]

    broken = follow(limits, choose, len(choices))
    assert not broken, broken


# -- faults put in -------------------------------------------------------------------------------


def the_last_proposal_counts(patch: pytest.MonkeyPatch) -> None:
    def read(self: RangeEnds, rows: Any) -> RangeEnds:
        new = {key.range: end for key, end in rows if end is not None and key.range in self.wanted}
        return RangeEnds(self.wanted, {**self.ends, **new})

    patch.setattr(RangeEnds, "read", read)


def a_repetition_has_the_name_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """Compaction keeps the later one, and another proposal comes first."""
    patch.setattr(RangeReader, "key", lambda self, attempt: EndKey(self.range.id, attempt))


def ends_before_it_has_read_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        RangeReader,
        "proposed",
        lambda self: replace(self, bound=self.delivered, proposals=self.proposals + 1),
    )


def hands_over_before_it_looks(patch: pytest.MonkeyPatch) -> None:
    """Each attempt hands over more than counts, and fails."""
    patch.setattr(
        RangeReader,
        "of",
        classmethod(lambda cls, each: RangeReader(each, each.begin, has_looked=True)),
    )


def _step_of() -> Callable[[RangeReader], Step]:
    found: property = vars(RangeReader)["step"]
    assert found.fget is not None
    return found.fget


def _ends_instead(patch: pytest.MonkeyPatch, of: Step) -> None:
    step = _step_of()

    def broken(self: RangeReader) -> Step:
        wanted = step(self)
        return Step.END if wanted is of else wanted

    patch.setattr(RangeReader, "step", property(broken))


def ends_though_it_has_handed_over_more(patch: pytest.MonkeyPatch) -> None:
    _ends_instead(patch, Step.FAIL)


def ends_when_its_time_is_over(patch: pytest.MonkeyPatch) -> None:
    """And leaves the end to the planner."""
    _ends_instead(patch, Step.PROPOSE)


def ends_once_there_is_a_bound(patch: pytest.MonkeyPatch) -> None:
    step = _step_of()

    def broken(self: RangeReader) -> Step:
        return Step.END if self.bound is not None else step(self)

    patch.setattr(RangeReader, "step", property(broken))


def a_parked_key_ends_with_its_range(patch: pytest.MonkeyPatch) -> None:
    raised = RangeEnd.raised
    patch.setattr(
        RangeEnd, "raised", lambda self, offset, *, but: raised(self, offset, but=NO_HASHES)
    )


def an_end_is_one_offset(patch: pytest.MonkeyPatch) -> None:
    """All ranges of a partition count as read as far as the furthest one."""

    def broken(*given: Any) -> dict[TopicPartition, Progress]:
        return {tp: Progress.at(progress.front) for tp, progress in reached(*given).items()}

    patch.setattr(open_world, "reached", broken)


def waits_for_ends_that_nobody_writes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(open_world, "seals", lambda ranges, ends: {})


def a_planner_takes_no_end_for_unread(patch: pytest.MonkeyPatch) -> None:
    """Without a word in the log: a late proposal changes it for the next planner."""
    ends_of = OpenWorld.ends_of

    def broken(world: OpenWorld, name: str, driver: Driver) -> None:
        ends = None
        if driver.number:
            before = world.offsets[driver.number - 1]
            known = ends_of(world, before)
            unread = {each.id: each.begin for each in before.ranges}
            ends = RangeEnds(known.wanted, {**unread, **known.ends})
        world.drivers[name] = replace(driver, phase="plan", ends=ends)

    patch.setattr(open_world, "_look", broken)


def deletes_ends_that_are_not_planned_upon(patch: pytest.MonkeyPatch) -> None:
    """Those of the last batch, before the next one is in Spark's log."""

    def broken(world: OpenWorld, driver: Driver) -> EndKey | None:
        name = world.offsets[driver.number - 1].batch.name
        gone = {key for _, key, end in world.log if end is None}
        return next((k for _, k, _ in world.log if k.range.batch == name and k not in gone), None)

    patch.setattr(open_world, "_deletable", broken)


def ends_have_no_name_of_their_own(patch: pytest.MonkeyPatch) -> None:
    """All batches have the same name: an end of the last one counts in the next."""

    def broken(batch: Any, progress: Any) -> list[OpenRange]:
        return [
            replace(each, id=RangeId("b", each.id.partition, each.id.number))
            for each in open_ranges(batch, progress)
        ]

    patch.setattr(open_world, "open_ranges", broken)
    patch.setattr(
        OpenWorld,
        "ends_of",
        lambda world, planned: no_ends(planned.ranges).read(
            [(key, end) for _, key, end in world.log]
        ),
    )


def an_older_spark_says_where_it_is_and_is_not_heard(patch: pytest.MonkeyPatch) -> None:
    """A restart begins where a new query would."""
    patch.setattr(LoggedEnd, "planned", lambda self, start, end: None)


def an_older_spark_asks_on_before_it_has_committed(patch: pytest.MonkeyPatch) -> None:
    """At a restart: it does not run the last batch again first."""
    patch.setattr(open_world, "_is_unfinished", lambda world: False)


FAULTS: dict[Patch, WorldLimits] = {
    the_last_proposal_counts: DEEP,
    a_repetition_has_the_name_of_the_first: DEEP,
    ends_before_it_has_read_back: DEEP,
    hands_over_before_it_looks: DEEP,
    ends_though_it_has_handed_over_more: DEEP,
    ends_when_its_time_is_over: DEEP,
    ends_once_there_is_a_bound: DEEP,
    a_parked_key_ends_with_its_range: PARKING,
    an_end_is_one_offset: DEEP,
    waits_for_ends_that_nobody_writes: EARLY,
    a_planner_takes_no_end_for_unread: EARLY,
    deletes_ends_that_are_not_planned_upon: DEEP,
    ends_have_no_name_of_their_own: DEEP,
    an_older_spark_says_where_it_is_and_is_not_heard: DEEP,
    an_older_spark_asks_on_before_it_has_committed: DEEP,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert is_found(any(walk(FAULTS[fault], seed) for seed in seeds(300)))
