"""The sizes that are found in a log are those of its record batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.errors import DataLossError
from kshare.testing import FakeCluster, Record
from kshare.wire.protocol import broker_pool
from kshare.wire.reader.read_slice import find_sizes, reader_options
from tests.support.batches import Rec, batch_of
from tests.support.scripted import ScriptedLog

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def slice_of(start: int, end: int, partition: int = 0) -> Slice:
    return Slice("t", partition, (Rectangle(OffsetRange(start, end), WHOLE),))


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300)), min_size=1, max_size=12),
    st.integers(0, 2_000),
    st.integers(1, 2_000),
    st.data(),
)
def test_sizes_are_those_of_the_log(
    made: list[tuple[int, int]], most: int, response_bytes: int, data: st.DataObject
) -> None:
    batches: list[bytes] = []
    log: list[tuple[int, int]] = []
    base = 0
    for count, size in made:
        records = [Rec(b"k", bytes(size), delta) for delta in range(count)]
        hole = data.draw(st.integers(0, 2))
        batch = batch_of(records, base=base, last_delta=count - 1 + hole)
        batches.append(batch.encode())
        base += count + hole
        log.append((base, len(batches[-1])))
    start = data.draw(st.integers(0, base - 1))
    brokers = ScriptedLog(batches, response_bytes=response_bytes)
    (found,) = find_sizes(
        [(slice_of(start, base), most)], reader_options(NOBODY, "t"), brokers=brokers
    )
    wanted = [at for at in log if at[0] > start]
    assert found == wanted[: len(found)]
    assert len(found) == len(wanted) or sum(size for _, size in found) > most


def test_partitions_in_one_pass_and_keys_of_the_query_do_not_matter() -> None:
    with FakeCluster(1, topics={"t": 2}) as cluster:
        for partition, count in enumerate((40, 70)):
            cluster.produce("t", [Record(b"k", b"v" * 50)] * count, partition=partition)
        given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "keys": '["other"]'}
        options = reader_options(given, "t")
        wanted = [(slice_of(0, 40), 1 << 20), (slice_of(0, 70, partition=1), 1 << 20)]
        one, two = find_sizes(wanted, options)
        assert (one[-1][0], two[-1][0]) == (40, 70)
        assert sum(size for _, size in one) > 40 * 50
        assert find_sizes([(slice_of(0, 40), 0)], options)[0][0] == one[0]
        cluster.trim("t", 0, 20)
        with pytest.raises(DataLossError, match="t-0"):
            find_sizes([(slice_of(10, 40), 9)], options)
        given["failOnDataLoss"] = "false"
        lenient = reader_options(given, "t")
        assert find_sizes([(slice_of(10, 40), 1 << 20)], lenient)[0][-1][0] == 40
    broker_pool.close_idle()
