"""Records with a handler: what may be handed over, and where a range ends for the others."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, WHOLE, KeyRanges, split
from kshare.core.open_batch import RangeReader, Step, done_slices, open_ranges
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_end import RangeEnd, RangeEnds
from kshare.core.unhandled import Unhandled

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
HASHES = [0, 1, HASH_SPACE // 2, HASH_SPACE // 2 + 9, HASH_SPACE - 1]
LEFT, RIGHT = (KeyRanges([half]) for half in split(WHOLE, 2))
Place = tuple[TopicPartition, int, int]  # with hash and offset


@dataclass
class Twin:
    """The same in lists: what was read, what is done, what went out."""

    read: list[Place] = field(default_factory=list)
    done: set[Place] = field(default_factory=set)
    out: list[Place] = field(default_factory=list)

    def end(self, place: Place) -> list[Place]:
        if place in self.read:
            self.done.add(place)
        found = []
        for each in self.read:
            before = [other for other in self.read if other[:2] == each[:2] and other <= each]
            if each not in self.out and self.done.issuperset(before):
                found.append(each)
        self.out += found
        return found

    def firsts(self, partition: TopicPartition) -> dict[int, int]:
        left = [each for each in self.read if each not in self.out and each[0] == partition]
        return {hash_: offset for _, hash_, offset in reversed(left)}


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Place]]:
    """Records that are read in offset order, and ends of some of them, at any time and again."""
    hashes = draw(st.lists(st.sampled_from(HASHES), min_size=1, max_size=12))
    places = [(draw(st.sampled_from([T0, T1])), each, at) for at, each in enumerate(hashes)]
    steps: list[tuple[str, Place]] = []
    for at, place in enumerate(places):
        steps.append(("read", place))
        ended = st.lists(st.sampled_from(places[: at + 2]), max_size=4)
        steps += [("done", each) for each in draw(ended)]
    return steps


@given(histories())
def test_a_beginning_of_each_hash_is_handed_over(steps: list[tuple[str, Place]]) -> None:
    held, twin = Unhandled[Place](), Twin()
    for kind, place in steps:
        if kind == "read":
            held.read(*place)
            twin.read.append(place)
        else:
            assert held.done(*place, place) == twin.end(place)
        for partition in (T0, T1):
            assert held.firsts(partition) == twin.firsts(partition)
        assert len(held) == len(twin.firsts(T0)) + len(twin.firsts(T1))
    left = len(twin.read) - len(twin.out)
    assert held.give_up() == left
    assert len(held) == held.give_up() == 0
    assert not any(held.done(*place, place) for place in twin.read)  # too late


@given(histories(), st.integers(0, 14), st.booleans())
def test_an_end_covers_what_is_handed_over_and_nothing_else(
    steps: list[tuple[str, Place]], more: int, is_parked: bool
) -> None:
    """And whoever reads the range after it reads the rest: nothing is lost, nothing comes twice."""
    batch = OpenBatch("b", 1, "ends", LogPosition(0, 0), {T0: (LEFT, RIGHT), T1: (LEFT, RIGHT)})
    begins = {T0: Progress.at(0), T1: Progress.at(0)}
    held, out = Unhandled[Place](), list[Place]()
    read = [place for kind, place in steps if kind == "read"]
    for kind, place in steps:
        if kind == "read":
            held.read(*place)
        else:
            out += held.done(*place, place)
    end_of_read = max(offset for _, _, offset in read) + 1 + more
    for each in open_ranges(batch, begins):
        reader = RangeReader.of(each).look(RangeEnds({})).deliver_to(end_of_read)
        if is_parked:
            reader = reader.park(KeyRanges.of_hashes([HASHES[0]]))
        reader = reader.hold(held.firsts(each.id.partition)).time_over()
        assert reader.step is Step.PROPOSE
        end = reader.delivered
        covered = {place for place in read if place[0] == each.id.partition and is_in(end, place)}
        wanted = {
            place for place in out if place[0] == each.id.partition and each.hashes.holds(place[1])
        }
        assert covered == wanted
        assert (
            sum(slice_.topic_partition == each.id.partition for slice_ in done_slices(each, end))
            <= 1
        )
        # One that has ended further on: this attempt goes on with exactly the others.
        beyond = RangeEnd.at(each.hashes, end_of_read)
        behind = reader.proposed().look(RangeEnds({each.id: each.hashes}, {each.id: beyond}))
        rest = {
            place
            for place in read
            if place[0] == each.id.partition and each.hashes.holds(place[1])
            for slice_ in behind.rest
            for stripe in slice_.stripes
            if stripe.hashes.lo <= place[1] < stripe.hashes.hi
            if any(
                lo <= place[2] < hi
                for lo, hi in zip(stripe.bounds[::2], stripe.bounds[1::2], strict=True)
            )
        }
        assert (
            rest
            == {p for p in read if p[0] == each.id.partition and each.hashes.holds(p[1])} - wanted
        )


def is_in(end: RangeEnd, place: Place) -> bool:
    return any(hashes.holds(place[1]) and place[2] < offset for hashes, offset in end.parts)


def test_a_range_of_one_hash_may_wait_as_a_whole() -> None:
    only = KeyRanges.of_hashes([HASHES[1]])
    batch = OpenBatch("b", 1, "ends", LogPosition(0, 0), {T0: (only,)})
    (each,) = open_ranges(batch, {T0: Progress.at(3)})
    reader = RangeReader.of(each).look(RangeEnds({})).deliver_to(9)
    assert reader.hold({HASHES[1]: 5, HASHES[2]: 4}).delivered == RangeEnd.at(only, 5)
