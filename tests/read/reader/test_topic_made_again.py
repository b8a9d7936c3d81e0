"""A topic that is deleted and made again while it is read: its id tells."""

import logging
from collections.abc import Iterator
from contextlib import closing

import pytest

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.errors import DataLossError
from kshare.kafka.protocol.background import Waker
from kshare.kafka.protocol.broker_pool import BrokerPool, process_memory
from kshare.read.reader.tail_reader import NO_END, NamedReset, TailReader, _TopicIds
from kshare.testing import FakeCluster
from tests.read.reader.test_tail_reader import PARTITIONS, options_of, values_of

ORDERS = PARTITIONS[0]
WARNING = "deleted and made again while it was read"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1}) as running:
        running.produce("orders", [("k", f"{at}") for at in range(3)], partition=0)
        yield running


def reading(cluster: FakeCluster, reset: NamedReset) -> TailReader:
    """A reader that has read all there is."""
    reader = TailReader(options_of(cluster), reset, Waker().open())
    reader.read(Slice(*ORDERS, (Rectangle(OffsetRange(0, NO_END), WHOLE),)))
    assert values_of(reader, 3) == [b"0", b"1", b"2"]
    return reader


def make_again(cluster: FakeCluster, topic_id: str = "another") -> str:
    """Let the process know the topic by another id, as the next look-up of its leader finds."""
    ids = process_memory().topic_ids
    (key,) = [key for key in ids if key[1] == "orders" and key[0] == cluster_key(cluster)]
    before, ids[key] = ids[key], topic_id
    return before


def cluster_key(cluster: FakeCluster) -> bytes:
    return BrokerPool(options_of(cluster).kafka)._cluster


def test_a_warning_names_both_ids_and_what_is_not_read(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with closing(reading(cluster, "earliest")) as reader:
        before = make_again(cluster)
        cluster.produce("orders", [("k", "new")], partition=0)
        assert values_of(reader, 1) == [b"new"]
        (said,) = [text for text in caplog.messages if WARNING in text]
        assert said.startswith(f"orders-0: the topic was {WARNING} (its id was {before}, and is ")
        assert "below offset 3, up to which the former one was read, is not read" in said
        assert "seek to offset 0 to read it" in said
        assert said.endswith("Going on at 3 (auto.offset.reset=earliest)")
        make_again(cluster, before)  # a broker that has not heard of it
        cluster.produce("orders", [("k", "more")], partition=0)
        assert values_of(reader, 1) == [b"more"]
        assert sum(WARNING in text for text in caplog.messages) == 1


def test_without_a_reset_it_is_an_error_and_read_on_after_a_seek(cluster: FakeCluster) -> None:
    with closing(reading(cluster, "error")) as reader:
        make_again(cluster)
        cluster.produce("orders", [("k", "new")], partition=0)
        with pytest.raises(DataLossError, match=WARNING) as raised:
            values_of(reader, 1)
        assert raised.value.wanted == (0, 3)
        assert (raised.value.topic, raised.value.partition) == ("orders", 0)
        reader.read(Slice(*ORDERS, (Rectangle(OffsetRange(0, NO_END), WHOLE),)))
        assert values_of(reader, 4)[-1] == b"new"


def test_brokers_that_give_no_ids(cluster: FakeCluster) -> None:
    cluster.limit_api_version("Metadata", 0, 9)
    with closing(reading(cluster, "error")) as reader:
        cluster.produce("orders", [("k", "new")], partition=0)
        assert values_of(reader, 1) == [b"new"]
        assert BrokerPool(options_of(cluster).kafka).topic_id("orders") is None


def test_the_id_is_asked_for_when_reading_begins(cluster: FakeCluster) -> None:
    """What the process remembers may be the id of a topic that is gone."""
    with closing(reading(cluster, "error")) as reader:
        before = make_again(cluster)
        reader.drop(ORDERS)
    with closing(reading(cluster, "error")):
        assert BrokerPool(options_of(cluster).kafka).topic_id("orders") == before


def test_after_a_pause_in_which_no_request_waited_it_is_asked_for_again(
    cluster: FakeCluster,
) -> None:
    with closing(reading(cluster, "earliest")) as reader:
        before = make_again(cluster)
        reader._alone_from = 0.0
        while BrokerPool(options_of(cluster).kafka).topic_id("orders") != before:
            reader.next_records(0.1)


def test_an_id_counts_once() -> None:
    ids = _TopicIds()
    assert not ids.is_known(ORDERS)
    told = [ids.replaced(ORDERS, each) for each in (None, "a", "a", "b", "a", "b", None, "c")]
    assert told == [None, None, None, "a", None, None, None, "b"]
    assert ids.is_known(ORDERS)
