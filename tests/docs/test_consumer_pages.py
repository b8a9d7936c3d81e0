"""docs/consumer.md and docs/key-shared.md have each name, and say of each what is true."""

import dataclasses
import re
from pathlib import Path

import confluent_kafka
import pytest

from kshare.group import AsyncKeySharedConsumer, KeySharedConsumer, Message
from kshare.group.config import ConsumerConfig, consumer_config
from kshare.group.config_table import CONFIGS
from tests.support.documents import ROOT

CONSUMER = (ROOT / "docs/consumer.md").read_text()
PROPOSAL = (ROOT / "docs/key-shared.md").read_text()


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


def test_the_consumer_of_asyncio_has_all_methods() -> None:
    public = {name for name in vars(KeySharedConsumer) if not name.startswith("_")}
    assert public - {"is_closed", "poll_fresh"} <= set(dir(AsyncKeySharedConsumer))


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


# The names of the proposal "key-shared consumption", draft 34: its configurations, the fields and
# classes that it adds or changes, its methods and its topic.
OF_PROPOSAL = {
    *("__individual_commit_offsets", "individual.commit.log.segment.bytes"),
    *("accept.individual.commit", "accept.range.fetch", "allow.individual.commit"),
    *("max.bytes.key.range.results", "max.bytes.key.range.hashing", "max.num.ranges.to.commit"),
    *("reserve.message.value.range.fetch", "OffsetCommitRequest", "OffsetRanges"),
    *("OffsetCommitResponse", "LastStableOffset", "FetchRequest", "KeyRanges"),
    *("OffsetFetchResponse", "CommittedRangeOffsets", "Consumer.assign", "Subscription"),
    *("ConsumerRebalanceListener", "onPartitionWithKeyRangesAssigned"),
    *("onPartitionWithKeyRangesRevoked", "onPartitionWithKeyRangesLost"),
    *("KeyRangeBasedAssignor", "StreamsMetadata", "topicPartitionsWithKeyRange"),
    *("ListConsumerGroupOffsetsResult", "OffsetAndMetadata", "rangeOffsets", "leaderEpoch"),
    *("GenerationId", "MemberId", "SessionTimeout"),
}


def test_each_name_of_the_proposal_is_in_the_table_once() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert set(NAMES) >= OF_PROPOSAL


def test_what_the_table_names_exists() -> None:
    for name, became, where in tables(PROPOSAL, "name")[0]:
        assert (where == "-") <= became.startswith("not yet"), name
        if became.startswith("a configuration"):
            assert name.strip("`") in CONFIGS
    for attribute in re.findall(r"`KeySharedConsumer\.(\w+)", PROPOSAL):
        assert hasattr(KeySharedConsumer, attribute)
    for page in re.findall(r"\]\((\w[\w-]*\.md)", PROPOSAL):
        assert (Path(ROOT) / "docs" / page).exists()
