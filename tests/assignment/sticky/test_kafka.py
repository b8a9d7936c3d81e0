"""Kafka's own way: active tasks exactly where kafka-streams 4.1.1 put them."""

import uuid

import pytest

from kshare.assignment import (
    ApplicationState,
    AssignmentConfigs,
    KafkaStreamsState,
    ProcessId,
    TaskId,
    TaskInfo,
    TaskTopicPartition,
)
from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.sticky.kafka import place_kafka_actives, place_kafka_standbys
from kshare.core.progress import TopicPartition

CASES = [
    # 9 tasks, 4 processes
    (
        [9],
        False,
        [
            (2, "0_4 0_8", "", "0_4 0_8"),
            (3, "0_0 0_5 0_7", "", "0_0 0_5 0_7"),
            (1, "0_1 0_2 0_3", "", "0_2 0_3"),
            (2, "0_6", "", "0_1 0_6"),
        ],
    ),
    # 9 tasks, 4 processes
    (
        [1, 2, 2, 2, 2],
        False,
        [
            (4, "1_1 2_1 4_1", "2_0", "1_1 2_1 4_0 4_1"),
            (2, "3_0", "0_0 2_0", "2_0 3_0"),
            (2, "3_1", "2_1 3_0", "3_1"),
            (2, "0_0 1_0", "2_1 3_0 3_1", "0_0 1_0"),
        ],
    ),
    # 13 tasks, 5 processes
    (
        [3, 2, 4, 4],
        False,
        [
            (3, "2_0 2_1 3_1", "0_0 2_2 2_3 3_0 3_2", "2_0 2_1 3_1"),
            (1, "1_1", "0_0 2_1 3_1 3_2 3_3", "1_1"),
            (4, "0_1 1_0 3_3", "0_2 2_0 2_3", "0_1 0_2 1_0 3_3"),
            (4, "2_3 3_0 3_2", "0_1 0_2 3_3", "0_0 2_3 3_0 3_2"),
            (1, "2_2", "2_0 3_0", "2_2"),
        ],
    ),
    # 14 tasks, 4 processes
    (
        [14],
        True,
        [
            (3, "0_3 0_11 0_12", "", "0_1 0_3 0_11 0_12"),
            (1, "0_9 0_13", "", "0_9 0_13"),
            (4, "0_0 0_5 0_7 0_10", "", "0_0 0_2 0_5 0_7 0_8 0_10"),
            (1, "0_4", "", "0_4 0_6"),
        ],
    ),
    # 12 tasks, 11 processes
    (
        [2, 3, 1, 3, 3],
        False,
        [
            (4, "1_0 4_2", "", "1_0 4_2"),
            (1, "", "", ""),
            (2, "0_0 3_2", "", "0_0 3_2"),
            (3, "3_1", "0_0 0_1", "3_1"),
            (2, "4_0 4_1", "", "4_0 4_1"),
            (3, "", "", ""),
            (4, "0_1 3_0", "2_0 4_1", "0_1 2_0 3_0"),
            (2, "", "3_0 3_1", ""),
            (1, "1_2 2_0", "4_2", "1_2"),
            (1, "", "3_2 4_0", ""),
            (2, "1_1", "", "1_1"),
        ],
    ),
    # 25 tasks, 8 processes
    (
        [7, 6, 5, 7],
        False,
        [
            (1, "1_0 2_0", "0_0 0_4 0_5 1_3 2_2", "1_0 3_4"),
            (3, "0_1 3_6", "0_0 0_5 1_2 1_5 2_1 2_2", "0_1 1_2 3_6"),
            (4, "2_2 3_2", "0_3 2_1 2_4", "0_0 0_3 2_2 3_2"),
            (2, "0_3 1_4 3_1 3_5", "0_1 1_1", "1_4 3_1 3_5"),
            (1, "0_4 3_3", "0_2 0_6 2_0 2_3", "0_4 3_3"),
            (4, "0_5 1_5 2_1", "0_1 0_3 0_6 1_1 2_0 2_3 2_4", "0_5 1_5 2_0 2_1"),
            (4, "1_1 1_3 2_3 2_4", "0_2 1_0 1_2 1_4", "1_1 1_3 2_3 2_4"),
            (2, "0_0 0_2 0_6 1_2 3_0 3_4", "0_4 1_0 1_3 1_4 1_5", "0_2 0_6 3_0"),
        ],
    ),
]
"""Partitions of each subtopology; whether all must stay; of each process: threads, what was active,
what was standby, what Kafka made active. The processes' ids are so that Kafka takes them in order.
"""


@pytest.mark.parametrize(("sizes", "must_preserve", "processes"), CASES)
def test_actives_are_kafkas(
    sizes: list[int], must_preserve: bool, processes: list[tuple[int, str, str, str]]
) -> None:
    tasks = [
        TaskInfo(TaskId(sub, partition), False, ())
        for sub, size in enumerate(sizes)
        for partition in range(size)
    ]
    names = [ProcessId(str(uuid.UUID(int=number + 1))) for number in range(len(processes))]
    states = [
        KafkaStreamsState(name, threads, (), parsed(active), parsed(standby))
        for name, (threads, active, standby, _) in zip(names, processes, strict=True)
    ]
    situation = IndexedState(ApplicationState.of(tasks, states, AssignmentConfigs()))
    placement = situation.empty_placement()
    place_kafka_actives(situation, placement, must_preserve)
    found = situation.active_ids(placement)
    assert found == {
        name: parsed(actives) for name, (*_, actives) in zip(names, processes, strict=True)
    }


def parsed(names: str) -> frozenset[TaskId]:
    return frozenset(map(TaskId.parse, names.split()))


def standbys(dealt: list[set[int]] | None, *threads: int) -> list[set[int]]:
    """Four logged tasks of which each process in turn has one; one standby each."""
    infos = [
        TaskInfo(TaskId(0, n), True, (TaskTopicPartition(TopicPartition("t", n), True, True),))
        for n in range(4)
    ]
    states = [KafkaStreamsState(ProcessId(str(n)), one) for n, one in enumerate(threads)]
    configs = AssignmentConfigs(num_standby_replicas=1)
    situation = IndexedState(ApplicationState.of(infos, states, configs))
    placement = situation.empty_placement()
    for task in range(4):
        placement.add_active(task % len(threads), task)
    place_kafka_standbys(situation, placement, dealt or placement.active)
    return placement.standby


def test_a_standby_comes_to_the_least_loaded_that_brings_a_new_pair_together() -> None:
    # The hash table hands out 3, 2, 1, 0. When 1 comes, it is with 2 already: so not to the third.
    assert standbys(None, 1, 1, 1, 1) == [{3}, {2}, {0}, {1}]


def test_only_pairs_from_before_racks_count() -> None:
    # All have been together, so that none is new.
    assert standbys([{0, 1, 2, 3}, set(), set(), set()], 1, 1, 1, 1) == [{3}, {2}, {1}, {0}]
