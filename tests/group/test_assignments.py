"""Offsets and partitions as users write them, and what is said of those that are none."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.hashing import ALL_HASHES, NO_HASHES
from kshare.core.offsets import OFFSET_MAX
from kshare.group.assignments import (
    as_assigned,
    offset_to_start,
    offsets_to_commit,
    parse_partition,
)
from tests.support.groups import T0

INTEGERS = [0, 5, np.int64(5), np.int32(5), np.uint8(5), OFFSET_MAX]


def at(offset: Any) -> list[Any]:
    return [SimpleNamespace(topic="orders", partition=0, offset=offset)]


def test_no_hashes_are_never_told_as_all() -> None:
    assert as_assigned({T0: ALL_HASHES}) == {T0: ()}
    with pytest.raises(AssertionError):
        as_assigned({T0: NO_HASHES})


@pytest.mark.parametrize("offset", INTEGERS)
def test_any_integer_is_an_offset(offset: Any) -> None:
    """Such as that of the last row of a batch, as numpy has it: the rest wants an int."""
    for limits in (offsets_to_commit(None, {T0: offset}), offsets_to_commit(None, at(offset))):
        assert limits == {T0: int(offset)}
        assert type(limits[T0]) is int
    assert type(offset_to_start(T0, offset)) is int


@pytest.mark.parametrize("offset", [True, np.bool_(True), 2.0, float("nan"), np.float64(4), "5"])
def test_what_is_no_integer_is_no_offset(offset: Any) -> None:
    for given in ({T0: offset}, at(offset)):
        with pytest.raises(TypeError, match=r"orders-0: cannot commit offset .*wanted 0 or more"):
            offsets_to_commit(None, given)
    with pytest.raises(TypeError, match=r"orders-0: cannot start at offset .*OFFSET_BEGINNING"):
        offset_to_start(T0, offset)


@pytest.mark.parametrize("offset", [-1, -5, OFFSET_END, OFFSET_MAX + 1, np.int64(-1)])
def test_an_offset_that_cannot_be_is_not_committed(offset: Any) -> None:
    for given in ({T0: offset}, at(offset)):
        with pytest.raises(ValueError, match=r"orders-0: cannot commit offset .*wanted 0 or more"):
            offsets_to_commit(None, given)


def test_a_partition_without_an_offset_is_none_to_commit() -> None:
    for given in (RdTopicPartition("orders", 0), RdTopicPartition("orders", 0, OFFSET_INVALID)):
        with pytest.raises(ValueError, match="no offset to commit in"):
            offsets_to_commit(None, [given])
    with pytest.raises(TypeError, match="cannot commit offset None"):
        offsets_to_commit(None, {T0: None})


def test_offsets_of_kafka_are_those_to_start_at() -> None:
    assert [offset_to_start(T0, each) for each in (OFFSET_BEGINNING, OFFSET_END)] == [
        OFFSET_BEGINNING,
        OFFSET_END,
    ]
    for each in (None, OFFSET_STORED, OFFSET_INVALID):
        assert offset_to_start(T0, each) is None
    with pytest.raises(ValueError, match="cannot start at offset 9223372036854775808"):
        offset_to_start(T0, OFFSET_MAX + 1)


@pytest.mark.parametrize("number", [True, -1, 1 << 31, 2.0, None])
def test_what_is_no_partition(number: Any) -> None:
    with pytest.raises(ValueError, match="not a partition"):
        parse_partition(("orders", number))


def test_a_partition_may_be_of_numpy() -> None:
    partition = parse_partition(("orders", np.int32(0)))
    assert partition == T0
    assert type(partition.partition) is int
