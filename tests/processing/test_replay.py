"""Dead letters that are put back, on the mock cluster."""

from typing import Any

import pytest

from kshare.core.hashing import WHOLE
from kshare.errors import TransactionAbortedError
from kshare.group.config.consumer_config import consumer_config
from kshare.group.session.transaction_log import TransactionLog
from kshare.processing.replay import Replay, group_of
from kshare.testing import FakeCluster, Record
from tests.support.groups import LOG

LETTERS = 50


def letter(at: int) -> Record:
    names = ("topic", "partition", "offset")
    values = (b"orders", b"0", b"%d" % at)
    headers = [
        (f"__connect.errors.{name}", value) for name, value in zip(names, values, strict=True)
    ]
    return Record(b"k%d" % (at % 5), b"v%d" % at, headers=headers)


def test_letters_come_again_after_the_last_transaction_was_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aborted, admit = list[int](), TransactionLog.await_admission

    def aborts_once(self: TransactionLog, work: Any, *rest: Any) -> None:
        has_all = any(each.position_of((WHOLE,)) >= LETTERS for each in work.processed.values())
        if has_all and not aborted:
            aborted.append(1)
            raise TransactionAbortedError("the coordinator did not answer")
        admit(self, work, *rest)

    monkeypatch.setattr(TransactionLog, "await_admission", aborts_once)
    with FakeCluster(topics={"orders": 1, "dlq": 1, LOG: 1}) as cluster:
        cluster.produce("dlq", [letter(at) for at in range(LETTERS)], partition=0)
        given = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "claim.timeout.ms": 300,
            "check.crcs": False,
        }
        kafka = consumer_config({**given, "group.id": group_of("dlq")}).kafka
        replay = Replay(kafka, given, "dlq")
        replay.run()
    assert aborted
    assert replay.counts == {"orders": LETTERS}
