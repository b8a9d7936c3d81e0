"""``minPartitions=auto``, ``maxTasks=auto`` and ``targetTaskDuration`` in one query."""

import random

import pytest

from kshare.query.feedback.messages import Executor
from tests.support.planner import KEYS, T0, Feedback, Log, Query, grown

SLOTS, TARGET = 4, 1.0
ALL = {"minPartitions": "auto", "maxTasks": "auto", "targetTaskDuration": f"{TARGET:g}s"}


class Located(Feedback):
    """Tasks also say where they ran: on one executor of four slots."""

    def executors(self, batch: str) -> dict[int, Executor]:
        return dict.fromkeys(self.told.get(batch, {}), Executor("1@a", SLOTS))


class Slotted(Query):
    """A query that knows how many tasks its batches have, and how long each takes."""

    make_feedback = Located

    def __init__(self, log: Log, **given: str) -> None:
        self.tasks: list[int] = []
        self.longest: list[float] = []
        super().__init__(log, **given)
        self.pace = lambda key: 0.001

    def read(self) -> None:
        """One batch; nothing if there is nothing new."""
        end = self.planner.latest_offsets(self.at, None)
        if end == self.at:
            return
        tasks = self.planner.tasks(self.at, end)
        seconds = [sum(self.run(planned) for planned in task.slices) for task in tasks]
        self.now += max(seconds, default=0.0) + 0.01
        self.at = end
        if sum(seconds):
            self.tasks.append(len(tasks))
            self.longest.append(max(seconds))

    def drop(self) -> tuple[list[int], list[float]]:
        tasks, longest = self.tasks, self.longest
        self.tasks, self.longest = [], []
        return tasks, longest


def phases(**given: str) -> list[tuple[list[int], list[float]]]:
    """The tasks and the longest of each batch: of a backlog, of a trickle, of a backlog again.

    A record takes 1 ms.
    """
    chance = random.Random(1)
    query = Slotted(grown(60_000), maxTimeAhead="off", **given)
    found = []
    for _ in range(12):
        query.read()
    found.append(query.drop())
    query.drain()
    query.drop()
    for _ in range(30):
        query.log.grow(chance.choices(KEYS, k=12))
        query.read()
    found.append(query.drop())
    query.log.grow(chance.choices(KEYS, k=12_000))
    for _ in range(2):
        query.read()
    found.append(query.drop())
    query.drain()
    query.check_order()
    assert len(query.delivered) == len(query.log.keys[T0])
    return found


def without(name: str) -> dict[str, str]:
    return {option: value for option, value in ALL.items() if option != name}


def test_all_three() -> None:
    busy, trickle, again = phases(**ALL)
    assert busy[0][3:8] == [SLOTS] * 5  # a range for each slot, each with a task of its own
    assert all(abs(seconds - TARGET) < 0.3 for seconds in busy[1][3:])
    assert set(trickle[0]) == {1}  # small slices share a task
    assert again[0][0] == SLOTS  # fewer tasks than slots took no slot away


def test_without_max_tasks_small_slices_have_tasks_of_their_own() -> None:
    busy, trickle, again = phases(**without("maxTasks"))
    assert busy[0][3:8] == [SLOTS] * 5
    assert set(trickle[0]) == {SLOTS}
    assert again[0][0] == SLOTS


def test_without_min_partitions_a_partition_is_one_range() -> None:
    for tasks, _ in phases(**without("minPartitions")):
        assert set(tasks) == {1}


def test_without_a_target_a_batch_reads_all_there_is() -> None:
    busy, trickle, again = phases(**without("targetTaskDuration"))
    assert busy[0] == [1]
    assert busy[1] == pytest.approx([60])
    assert set(trickle[0]) == {1}
    assert again[0] == [SLOTS]
