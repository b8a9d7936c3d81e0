"""What a consumer reads while its group rebalances."""

from collections.abc import Mapping
from contextlib import closing
from typing import cast

from kshare.core.hashing import WHOLE, key_hash
from kshare.core.progress import Progress, TopicPartition
from kshare.group.delivery.tail import Tail
from kshare.group.session.session import GroupSession
from kshare.testing import FakeCluster
from kshare.wire.protocol.waker import Waker
from tests.support.groups import LOWER, T0, eventually, group_config


class Started:
    """A session that has started what it is told to."""

    def __init__(self) -> None:
        self.at: dict[TopicPartition, Progress] = {}

    def started(self) -> Mapping[TopicPartition, Progress]:
        return self.at


def test_what_starts_amid_a_rebalance_is_read_on_under_the_next_claim() -> None:
    """As after a lost log: a claim is in place only when some of its hashes are given up."""
    keys = [f"key-{i}" for i in range(40)]
    of_lower = [i for i, key in enumerate(keys) if key_hash(key.encode(), i) in LOWER]
    session = Started()
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [(key.encode(), b"v") for key in keys], partition=0)
        config = group_config(cluster.bootstrap_servers)
        with closing(Tail(config, cast("GroupSession", session), Waker().open())) as tail:
            tail.assign({T0: (WHOLE,)})
            tail.keep({T0: (LOWER,)})
            session.at = {T0: Progress.at(0)}
            tail.refresh()
            assert not tail.is_settled()
            assert eventually(lambda: tail.next_rows(0.1))
            assert [message.offset() for message in tail.rows.messages] == of_lower
            session.at = {}
            tail.assign({T0: (LOWER,)}, keeps=True)
            tail.refresh()
            assert T0 in tail.deliveries  # nobody else gets them
            session.at = {T0: Progress.at(0)}
            tail.refresh()
            assert tail.is_settled()
            assert tail.deliveries[T0].position == len(keys)
