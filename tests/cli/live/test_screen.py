"""A snapshot as text: what is shown fits, is in order, and is true."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.cli.live.screen import SORTS, View, render
from kshare.cli.live.snapshot import RangeLine, Snapshot, bar_of, of_group
from kshare.cli.live.watch import Latest
from kshare.cli.top import key_pressed
from kshare.core.hashing import WHOLE, HashRange, KeyRanges, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.group.protocol.owners.range_owners import LivingMember, RangeOwner
from kshare.group.tools.status import (
    GroupStatus,
    MemberLoad,
    MemberStatus,
    RangeLag,
    range_lags,
)
from kshare.kafka.parked_keys import ParkedInfo
from kshare.monitor.plot import panel
from tests.support.looks import AT, ORDERS, WHY, made_up, recorded

OTHER = TopicPartition("payments", 11)


def texts(snapshot: Snapshot, view: View = View(), height: int | None = None) -> list[str]:  # noqa: B008
    return [line.text for line in render(Latest(1, snapshot), view, height)]


def test_a_query_with_a_slow_key(tmp_path: Path) -> None:
    first, second = recorded(tmp_path)
    lines = texts(dataclasses.replace(second, at=first.at), View(interval=2.0))
    assert lines[0] == "query orders-checkpoint, lag 280,792"
    assert lines[1].startswith("batch 6 planned, 5 committed; at ")
    assert lines[1].endswith(", every 2 s; by hash")
    strip = next(line for line in lines if "|" in line)
    assert strip.startswith("orders-0  |")
    assert strip.endswith("| behind up to 280,792")
    # The highest of 50 parts is the one that holds the slow key's hash.
    assert strip.split("|")[1].index("█") == 4317218492177167391 * 50 >> 63
    row = next(line for line in lines if "4317218492177167391" in line)
    assert row.split()[-2:] == ["19,208", "280,792"]
    assert any("customer-39" in line and WHY in line for line in lines)
    assert any("204 days ago" in line for line in lines)
    outliers = [line.text for line in render(Latest(1, second), View()) if line.style == "outlier"]
    assert [text.split()[2] for text in outliers] == ["4317218492177167391"]


def test_a_bar_never_shows_what_is_pending_as_processed(tmp_path: Path) -> None:
    almost = made_up(Progress.at(0), 1000)
    for position in (0, 1, 949, 950, 999, 1000):
        done = Progress.of(0, [Rectangle(OffsetRange(0, position), WHOLE)] if position else [])
        (line,) = (dataclasses.replace(almost.ranges[0], position=position),)
        bar = bar_of(line, almost.partitions[0])
        assert bar == (position / 1000, position / 1000), done
        look = dataclasses.replace(almost, ranges=(line,))
        row = texts(look, View(is_ascii=True))[-1]
        assert row.split()[-3].count("#") == position * 20 // 1000


def test_ascii_is_ascii(tmp_path: Path) -> None:
    for look in recorded(tmp_path):
        for line in texts(look, View(is_ascii=True)):
            line.encode("ascii")


@pytest.mark.parametrize("height", [8, 14, 24, 60])
def test_it_fits_on_the_screen(height: int) -> None:
    ranges = [*split(WHOLE, 100)]
    look = made_up(Progress.at(3), 100, ranges=ranges)
    lines = texts(look, View(), height)
    assert len(lines) <= height
    assert sum(line.startswith("orders-0 ") for line in lines) >= 2
    assert lines[-1].startswith("ranges 1 to ")
    last = texts(look, View(first=10**6), height)
    assert "99.00 % to 100.00 %" in last[-2]
    assert last[-1].endswith(" to 100 of 100 (arrows scroll)")


@pytest.mark.parametrize("width", [100, 60, 45, 20])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_what_is_narrow_keeps_position_and_lag(tmp_path: Path, width: int, is_ascii: bool) -> None:
    _, look = recorded(tmp_path)
    view = View(is_ascii=is_ascii)
    lines = [line.text for line in render(Latest(1, look), view, width=width)]
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if "key hashes" in line)
    assert ("offsets" in head) == (width >= 100)
    if width >= 45:
        rows = lines[lines.index(head) + 1 :][: len(look.ranges)]
        assert [row.split()[-2:] for row in rows] == [
            [f"{each.position:,}", f"{each.lag:,}"] for each in look.ranges
        ] or width >= 100
    cut = [line for line in lines if line.endswith("..." if is_ascii else "…")]
    whole = [line.text for line in render(Latest(1, look), view)]
    assert bool(cut) == (width < max(len(line) for line in (whole[1], whole[-1])))


def test_of_several_partitions_the_names_stay() -> None:
    one, other = made_up(Progress.at(1), 9), made_up(Progress.at(2), 9, partition=OTHER)
    ranges, partitions = one.ranges + other.ranges, one.partitions + other.partitions
    look = dataclasses.replace(one, ranges=ranges, partitions=partitions)
    lines = [line.text for line in render(Latest(1, look), View(), width=50)]
    assert [line.split()[0] for line in lines[-2:]] == ["orders-0", "payments-11"]


def test_a_query_that_may_have_stopped_is_not_drawn_as_running(tmp_path: Path) -> None:
    _, look = recorded(tmp_path)
    still = dataclasses.replace(look, is_still=True, warnings=("no change for 12 min: stopped?",))
    running, stopped = (
        list(render(Latest(1, each), View(is_ascii=True))) for each in (look, still)
    )
    assert any("+" in line.text for line in running)
    assert not any("+" in line.text for line in stopped)
    assert stopped[2].text == "warning: no change for 12 min: stopped?"


lines_of_ranges = st.lists(
    st.builds(
        RangeLine,
        source=st.integers(0, 1),
        partition=st.just(ORDERS),
        hashes=st.sampled_from([KeyRanges([each]) for each in split(WHOLE, 16)]),
        position=st.none() | st.integers(0, 9),
        lag=st.none() | st.integers(0, 9),
        member=st.none() | st.sampled_from(["a", "b"]),
        speed=st.none() | st.floats(0, 9),
    ),
    max_size=8,
)


@given(lines_of_ranges, st.sampled_from([*SORTS]), st.booleans(), st.none() | st.integers(5, 40))
def test_each_order_shows_every_range(
    ranges: list[RangeLine], sort: str, is_reversed: bool, height: int | None
) -> None:
    look = dataclasses.replace(made_up(Progress.at(0), 9), ranges=tuple(ranges))
    lines = texts(look, View(sort=sort, is_reversed=is_reversed), height)
    if height is None and ranges:
        table = lines[lines.index("", 3) + 2 :]
        assert len(table) == len(ranges)


def test_the_orders() -> None:
    low, high = HashRange(0, 8), HashRange(8, 1 << 63)
    slow = RangeLine(0, ORDERS, KeyRanges([low]), 5, 95, "b", speed=1.0)
    fast = RangeLine(0, ORDERS, KeyRanges([high]), 90, 10, "a", speed=9.0)
    unknown = RangeLine(1, ORDERS, KeyRanges([low]), None, None)
    look = dataclasses.replace(made_up(Progress.at(0), 9), ranges=(unknown, fast, slow))
    wanted = {
        "h": [slow, fast, unknown],
        "l": [slow, fast, unknown],
        "s": [slow, fast, unknown],
        "p": [slow, fast, unknown],
        "m": [fast, slow, unknown],
    }
    for key, order in wanted.items():
        assert sorted(look.ranges, key=SORTS[key][1]) == order, key


def test_faults_are_seen() -> None:
    lost = made_up(Progress.at(5), 100)
    gone = dataclasses.replace(lost.partitions[0], log=(30, 100))
    look = dataclasses.replace(lost, partitions=(gone,), warnings=("topic x is not there",))
    lines = render(Latest(2, look, "no broker answers"), View())
    assert [(line.style, line.text) for line in lines[2:5]] == [
        ("fault", "NOT RENEWED: no broker answers"),
        ("fault", "orders-0: LOST: 25 pending offsets are below the first one of the log"),
        ("warning", "warning: topic x is not there"),
    ]


def test_keys() -> None:
    view = View(first=7)
    assert key_pressed(view, "q", 10) is None
    assert key_pressed(view, "l", 10) == View(sort="l")
    assert key_pressed(view, "r", 10) == View(first=7, is_reversed=True)
    moved = {"KEY_UP": 6, "KEY_DOWN": 8, "KEY_NPAGE": 17, "KEY_PPAGE": 0, "KEY_HOME": 0, "x": 7}
    for name, first in moved.items():
        assert key_pressed(view, name, 10) == View(first=first), name


def test_a_members_hashes_that_stand_apart_have_a_row_for_each() -> None:
    low, high = split(WHOLE, 2)
    progress = {ORDERS: Progress.of(10, [Rectangle(OffsetRange(10, 30), low)])}
    ends = {ORDERS: 50}
    owner = RangeOwner(ORDERS, WHOLE, "a")
    status = GroupStatus(
        group="billing",
        state="Stable",
        epoch=None,
        generation=None,
        leader=None,
        members=(),
        ranges=tuple(range_lags([owner], progress, ends)),
        progress=progress,
        logs={ORDERS: (0, 50)},
    )
    look = of_group(status, {("orders", b"k"): ParkedInfo("2026")}, AT)
    rows = [(each.hashes, each.position, each.lag, each.member) for each in look.ranges]
    assert rows == [((low,), 30, 20, "a"), ((high,), 10, 40, "a")]
    assert [sum(bars[-1]) for _, bars in panel(look.partitions[0], ()).stripes] == [30, 10]
    level = dataclasses.replace(status, progress={ORDERS: Progress.at(10)})
    parked = of_group(level, {("orders", b"k"): ParkedInfo("2026")}, AT)
    assert any("not seen by the group yet" in line for line in texts(parked))


# -- the cost --------------------------------------------------------------------------------------


class Counted(tuple[Any, ...]):
    """Ranges that count how often somebody goes through them."""

    __slots__ = ()
    rounds = 0

    def __iter__(self) -> Iterator[Any]:
        Counted.rounds += 1
        return super().__iter__()


def rounds_of_a_screen(partitions: int) -> int:
    """How often ranges are gone through to show so many partitions."""
    places = [TopicPartition("t", number) for number in range(partitions)]
    looks = [made_up(Progress.at(1), 9, partition=place) for place in places]
    ranges = Counted(each for look in looks for each in look.ranges)
    shown = tuple(each.partitions[0] for each in looks)
    look = dataclasses.replace(looks[0], ranges=ranges, partitions=shown)
    Counted.rounds = 0
    assert 30 < len(texts(look, View(), 40)) <= 40
    return Counted.rounds


def rounds_of_members(count: int) -> int:
    """How often ranges are gone through for the loads of so many members."""
    names = [f"member-{number}" for number in range(count)]
    lags = Counted(RangeLag(ORDERS, WHOLE, name, 1, 9) for name in [*names, None, *names])
    members = tuple(MemberStatus(LivingMember(name, "host", ""), None) for name in names)
    status = GroupStatus("billing", "stable", None, None, None, members, lags, {}, {})
    Counted.rounds = 0
    assert [load for _, load in status.loads()] == [MemberLoad(2, 18, None, None)] * count
    return Counted.rounds


@pytest.mark.parametrize("rounds", [rounds_of_a_screen, rounds_of_members])
def test_ranges_are_gone_through_as_often_however_many_there_are(
    rounds: Callable[[int], int],
) -> None:
    """Each key that is pressed renders; 600 partitions with 16 ranges each are 9,600."""
    assert rounds(40) == rounds(400) < 10
