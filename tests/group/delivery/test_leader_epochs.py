"""The leader epoch of the last processed record: from what was read into what is committed."""

from collections.abc import Iterator
from typing import Any

import pytest

from kshare.core.hashing import ALL_HASHES, KeyRanges
from kshare.core.leader_epochs import NO_EPOCHS
from kshare.group import KeySharedConsumer
from kshare.group.log.primary import StoredOffset, committed_offset
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.records import Claim, Record, Reset, Stable, key_of
from kshare.group.protocol.commit_log.start import Anchor, Primary, resolve_start
from kshare.group.protocol.owners.actions import Action, FetchPrimary, Write, WritePrimary
from kshare.group.protocol.owners.owner import Owner
from kshare.group.protocol.owners.plain_owner import PlainOwner
from kshare.group.tools.offsets import list_offsets
from kshare.kafka.coordinator import offsets_to_send
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.groups import GROUP, LOG, LOWER, T0, UPPER, rectangle

EPOCHS = NO_EPOCHS.read(0, 15, [(0, 3), (10, 5)]).read(20, 30, [(20, 6)])
ANCHOR = Anchor(1, 0)


class Log:
    """The group's log and primary offset, and what owners do to them."""

    def __init__(self, primary: Primary) -> None:
        self.log = GroupLog("g")
        self.primary = primary
        self.apply(Reset(T0, 1, 0))

    def apply(self, *records: Record) -> None:
        for record in records:
            self.log.apply(self.log.end, key_of(record), record)

    def run(self, owner: Owner) -> None:
        while actions := owner.actions(self.log.of(T0), self.log.end):
            for action in actions:
                self.do(owner, action)

    def do(self, owner: Owner, action: Action) -> None:
        match action:
            case Write(records):
                self.apply(*records)
            case FetchPrimary():
                owner.primary_read(self.primary, self.log.end)
            case WritePrimary(offset, anchor, leader_epoch):
                self.primary = Primary(offset, anchor, leader_epoch)
                owner.primary_written()

    def commit(self, owner: Owner, *pieces: Any) -> None:
        owner.processed(pieces)
        owner.begin_commit(self.log.of(T0))
        self.run(owner)


@pytest.mark.parametrize(
    ("end", "epoch"), [(10, 3), (11, 5), (15, 5), (16, None), (20, None), (25, 6)]
)
@pytest.mark.parametrize("kind", [Owner, PlainOwner])
def test_a_commit_names_the_epoch_of_the_last_processed_record(
    kind: type[Owner], end: int, epoch: int | None
) -> None:
    world = Log(Primary(0, ANCHOR))
    owner = kind(Claim(T0, "m#1", ALL_HASHES), leader_epochs=EPOCHS)
    world.run(owner)
    world.commit(owner, rectangle(0, end))
    assert (world.primary.offset, world.primary.leader_epoch) == (end, epoch)
    if kind is Owner:
        assert world.log.of(T0).stable == Stable(T0, 1, end, epoch, "", "m#1")


def test_the_lead_names_the_epoch_also_if_another_member_was_the_last() -> None:
    world = Log(Primary(0, ANCHOR))
    lead = Owner(Claim(T0, "a#1", KeyRanges([LOWER])), leader_epochs=EPOCHS)
    other = Owner(Claim(T0, "b#1", KeyRanges([UPPER])))
    for owner in (lead, other):
        world.run(owner)
    world.commit(lead, rectangle(0, 14, LOWER))
    world.commit(other, rectangle(0, 12, UPPER))
    world.commit(lead)
    assert (world.primary.offset, world.primary.leader_epoch) == (12, 5)


def test_the_offset_of_a_plain_consumer_keeps_its_epoch_when_it_gets_an_anchor() -> None:
    world = Log(Primary(7, None, 2))
    owner = Owner(Claim(T0, "m#1", ALL_HASHES))
    world.run(owner)
    assert world.primary.anchor is not None
    assert (world.primary.offset, world.primary.leader_epoch) == (7, 2)


@pytest.mark.parametrize(
    ("said", "primary", "epoch"),
    [
        (Stable(T0, 1, 10, 4), Primary(10, ANCHOR, 4), 4),
        (Stable(T0, 1, 10, 4), Primary(8, ANCHOR, 3), 4),  # the primary follows
        (Stable(T0, 1, 10, None), Primary(10, ANCHOR, 9), None),
        (Stable(T0, 1, 10, 4), Primary(12, ANCHOR, 5), 5),  # of a member that may not write
        (Stable(T0, 1, 10, 4), Primary(10, None, 2), 2),  # of Kafka's own tool
        (None, Primary(10, None, 2), 2),  # of a plain consumer
        (None, Primary(10, ANCHOR), None),
    ],
)
def test_the_epoch_that_is_listed(said: Stable | None, primary: Primary, epoch: int | None) -> None:
    world = Log(primary)
    if said is not None:
        world.apply(said)
    listed = committed_offset(primary, world.log.of(T0), (0, world.log.end), "")
    assert listed is not None
    assert listed.leader_epoch == epoch
    start = resolve_start(primary, world.log.of(T0), log_end=world.log.end)
    assert start.progress.stable == listed.offset
    assert start.leader_epoch == epoch


def test_facts_beyond_the_stable_offset_that_is_named_have_no_known_epoch() -> None:
    world = Log(Primary(0, ANCHOR))
    one, other = (
        Owner(Claim(T0, "a#1", KeyRanges([LOWER])), leader_epochs=EPOCHS),
        Owner(Claim(T0, "b#1", KeyRanges([UPPER]))),
    )
    for owner in (one, other):
        world.run(owner)
    world.commit(one, rectangle(0, 14, LOWER))
    world.commit(other, rectangle(0, 12, UPPER))  # it is not the lead
    listed = committed_offset(world.primary, world.log.of(T0), (0, world.log.end), "")
    assert listed is not None
    assert (listed.offset, listed.leader_epoch) == (12, None)


@pytest.mark.parametrize(("epoch", "sent"), [(4, 4), (0, 0), (None, -1)])
def test_a_member_sends_it(epoch: int | None, sent: int) -> None:
    (topic,) = offsets_to_send({T0: StoredOffset.of(Primary(5, None, epoch))})
    assert [part.committed_leader_epoch for part in topic.partitions] == [sent]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(2, topics={"orders": 1, LOG: 1}) as running:
        yield running


def test_a_consumer_commits_the_epochs_that_it_has_read(cluster: FakeCluster) -> None:
    """The mock cluster counts a partition's leaders, and stamps batches with their number."""
    config = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    found: list[tuple[int, int | None]] = []
    with KeySharedConsumer(config) as consumer:
        consumer.assign({("orders", 0): []})
        for number, leader in enumerate((1, 2, 1)):
            cluster.move_leader("orders", 0, leader)
            cluster.produce("orders", [(b"k", b"v")] * 10, partition=0)
            messages = consumer.consume(10, WAIT_S)
            assert len(messages) == 10
            epochs = {message.leader_epoch() for message in messages}
            assert consumer.commit() == {T0: 10 * (number + 1)}
            (listed,) = list_offsets(GROUP, config).values()
            assert consumer.committed([T0])[T0] == listed
            assert epochs == {listed.leader_epoch}
            found.append((listed.offset, listed.leader_epoch))
    assert [offset for offset, _ in found] == [10, 20, 30]
    assert len({epoch for _, epoch in found}) > 1
    assert None not in {epoch for _, epoch in found}
