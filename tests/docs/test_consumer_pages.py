"""docs/consumer.md and docs/design/key-shared.md have each name, and say of each what is true."""

import dataclasses
import re
from pathlib import Path

import confluent_kafka
import pytest

from kshare.group import AsyncKeySharedConsumer, KeySharedConsumer, Message
from kshare.group.config.consumer_config import consumer_config
from kshare.group.config.table import CONFIGS, ConsumerConfig
from kshare.options.row_names import DOTTED_NAMES
from kshare.testing import FakeCluster, Record
from tests.support.clock import WAIT_S
from tests.support.documents import ROOT

CONSUMER = (ROOT / "docs/consumer.md").read_text()
PROPOSAL = (ROOT / "docs/design/key-shared.md").read_text()


def tables(text: str, header: str) -> list[list[list[str]]]:
    """The rows of the tables whose first header is this one."""
    found: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == header:
            inside = True
            found.append([])
        elif inside and not line.startswith("|---"):
            found[-1].append(cells)
    return found


METHODS, OF_MESSAGES = tables(CONSUMER, "method")
NAMES = [row[0].strip("`") for row in tables(PROPOSAL, "name")[0]]


@pytest.mark.parametrize(
    ("rows", "peer", "ours"),
    [
        (METHODS, confluent_kafka.Consumer, KeySharedConsumer),
        (OF_MESSAGES, confluent_kafka.Message, Message),
    ],
    ids=["consumer", "message"],
)
def test_the_tables_of_methods_are_complete_and_true(
    rows: list[list[str]], peer: type, ours: type
) -> None:
    named = [row[0].strip("`") for row in rows]
    public = sorted(name for name in dir(peer) if not name.startswith("_"))
    # Versions differ in what they have more than the one that the page names.
    assert set(public) <= set(named)
    assert named == sorted(set(named))
    for name, (_, here, difference) in zip(named, rows, strict=True):
        assert here in {"same", "different", "not there"}, name
        assert hasattr(ours, name) is (here != "not there"), name
        assert bool(difference) is (here != "same"), name


def test_what_is_said_to_be_the_same_answers_the_same() -> None:
    """Each record, asked by confluent-kafka's messages and by ours."""
    records = [
        Record(b"k", b"value", [("a", b"1"), ("a", None), ("b", b"")], 1_700_000_000_123),
        Record(None, None),
        Record(b"", b"", timestamp=1),
        Record("\u00e9", b"\xff" * 3_000),
    ]
    same = [row[0].strip("`") for row in OF_MESSAGES if row[1] == "same"]
    assert {"key", "value", "offset", "timestamp", "headers", "leader_epoch"} <= set(same)
    with FakeCluster(topics={"orders": 2, "__individual_commit_offsets": 1}) as cluster:
        cluster.produce("orders", records, partition=1)
        config = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}
        peer = confluent_kafka.Consumer(config)
        peer.assign([confluent_kafka.TopicPartition("orders", 1, 0)])
        theirs = peer.consume(len(records), WAIT_S)
        peer.close()
        config |= {"group.id": "h", "auto.offset.reset": "earliest"}
        with KeySharedConsumer(config) as consumer:
            consumer.assign({("orders", 1): []})
            ours = consumer.consume(len(records), WAIT_S)
    assert len(theirs) == len(ours) == len(records)
    for expected, message in zip(theirs, ours, strict=True):
        for name in same:
            assert getattr(message, name)() == getattr(expected, name)(), name
        assert len(message) == len(expected)


def test_the_consumer_of_asyncio_has_all_methods() -> None:
    public = {name for name in vars(KeySharedConsumer) if not name.startswith("_")}
    inner = {"calls", "is_closed", "poll_fresh", "receiver", "releases", "take_turns"}
    assert public - inner <= set(dir(AsyncKeySharedConsumer))


def test_the_table_of_configurations_is_that_of_the_parser() -> None:
    base = {"bootstrap.servers": "b:1", "group.id": "g"}
    defaults = consumer_config(base)
    shown = {True: "`true`", False: "`false`", None: "none", (): "all but `headers`"}
    expected = []
    for entry in CONFIGS.values():
        value = getattr(defaults, entry.field)
        default = shown.get(value, f"`{value}`")
        if entry.name == "acknowledgement.mode":
            default = "`implicit`"
        if entry.name == "partition.assignment.strategy":
            default = f"`{','.join(value)}`"
        expected.append([f"`{entry.name}`", entry.kind.values, default, entry.doc])
    assert tables(CONSUMER, "configuration")[0] == expected
    fields = {field.name for field in dataclasses.fields(ConsumerConfig)}
    assert {entry.field for entry in CONFIGS.values()} <= fields


def test_the_table_of_typed_rows_is_that_of_the_parser() -> None:
    expected = [[f"`{name}`", f"`{option}`"] for name, option in DOTTED_NAMES.items()]
    (rows,) = tables(CONSUMER, "typed rows")
    assert rows[: len(expected)] == expected
    assert [row[0] for row in rows[len(expected) :]] == [
        "`value.json.NAME`, `key.json.NAME`",
        "`schema.registry.NAME`",
    ]


# The names of the proposal "key-shared consumption", draft 34: its configurations, the fields and
# classes that it adds or changes, its methods and its topics.
OF_PROPOSAL = {
    *("__individual_commit_offsets", "__consumed_offsets", "individual.commit.log.segment.bytes"),
    *("accept.individual.commit", "accept.range.fetch", "allow.individual.commit"),
    *("max.bytes.key.range.results", "max.bytes.key.range.hashing", "max.num.ranges.to.commit"),
    *("reserve.message.value.range.fetch", "OffsetCommitRequest", "CommittedOffset"),
    *("OffsetRanges", "OffsetCommitResponse", "OffsetCommitResponseTopic"),
    *("OffsetCommitResponsePartition", "LastStableOffset", "FetchRequest", "KeyRanges"),
    *("OffsetFetchResponse", "OffsetFetchResponseTopic", "OffsetFetchResponsePartition"),
    *("CommittedRangeOffsets", "Consumer.assign", "partitionWithKeyRanges", "poll"),
    *("Subscription", "ConsumerRebalanceListener", "onPartitionWithKeyRangesAssigned"),
    *("onPartitionWithKeyRangesRevoked", "onPartitionWithKeyRangesLost", "onPartitionsAssigned"),
    *("onPartitionsRevoked", "onPartitionsLost", "KeyRangeBasedAssignor"),
    *("ConsumerPartitionAssignor", "partitionsPerTopic", "subscriptions"),
    *("topicAllowKeyRangeFetch", "coordinatorAllowIC", "consumersAllowKeyRange"),
    *("groupSubscriptionByTopic", "subscriptionByTopic", "StreamsMetadata", "hostInfo", "host"),
    *("port", "stateStoreNames", "topicPartitions", "topicPartitionsWithKeyRange"),
    *("ListConsumerGroupOffsetsResult", "future", "OffsetAndMetadata", "offset", "metadata"),
    *("rangeOffsets", "leaderEpoch", "GenerationId", "MemberId", "SessionTimeout"),
    "TransactionOffsetCommit",  # "transaction offset commit will also include the offset range"
}
# The fields that it copies from Kafka's schemas, unchanged.
OF_KAFKA = {
    *("GroupId", "Offsets", "GroupInstanceId", "Offset", "Metadata", "LeaderEpoch"),
    *("ThrottleTimeMs", "Topics", "ErrorCode", "Name", "Partitions", "PartitionIndex"),
    *("MaxWaitTime", "ReplicaId", "MinBytes", "IsolationLevel", "FetchSessionId"),
    *("FetchSessionEpoch", "RemovedTopics", "TopicName", "Partition", "CurrentLeaderEpoch"),
    *("FetchOffset", "StartOffset", "MaxBytes", "RemovedTopicName", "RemovedPartition"),
    *("CommittedOffset", "CommittedLeaderEpoch"),
}
FIELDS = [row[0].strip("`") for row in tables(PROPOSAL, "field")[0]]


def test_each_name_of_the_proposal_is_in_the_table_once() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert set(NAMES) == OF_PROPOSAL
    assert sorted(OF_KAFKA) == FIELDS


def test_what_the_table_names_exists() -> None:
    for name, became, where in tables(PROPOSAL, "name")[0]:
        assert (where == "-") <= became.startswith("not yet"), name
        if became.startswith("a configuration"):
            assert name.strip("`") in CONFIGS
    for attribute in re.findall(r"`KeySharedConsumer\.(\w+)", PROPOSAL):
        assert hasattr(KeySharedConsumer, attribute)
    for page in re.findall(r"\]\((\w[\w-]*\.md)", PROPOSAL):
        assert (Path(ROOT) / "docs" / page).exists()
