"""The judge of a history: what consumers of Kafka have done, by Jepsen's anomalies, for each key.

A *history* is what producers have written, and what each consumer process was assigned, has
received, and knew to be committed. A process *holds* a key from when it is assigned the key's hash
(without hashes: its partition) to when it is assigned it again. A process without callbacks holds
each key that it receives once, for as long as it lives.

::

    A   assigned ---- 5 - 7 ----------- X -- assigned -- 12
    B            assigned --- 7 - 9 ---------- 9' -          X: B has begun, and A goes on
                                                             9': in one holding, offsets ascend

Guarantees: rebalances excuse nothing. A record may come again only if it is not known to be
committed, and the process that had it has died, was closed, or has lost its hashes: then at the
successor, in order. The deliveries of each holding of a key follow one another with none of another
holding between them, and ascend strictly; none comes after the process has said that the hash is
revoked or lost. One record is excused after a process that was stopped goes on, and after the
beginning of a close: the one in hand.

The names of the anomalies are those of Jepsen's workload for Kafka
(https://github.com/jepsen-io/redpanda, ``workload/queue.clj``), which looks at partitions, and
excuses rebalances.
"""

from integration.history.anomalies import Polls, Writes
from integration.history.model import (
    KINDS,
    Anomaly,
    Committed,
    Delivery,
    Events,
    History,
    Kind,
    Outcome,
    OwnerChange,
    Sent,
)

__all__ = [
    "KINDS",
    "Anomaly",
    "Committed",
    "Delivery",
    "Events",
    "History",
    "Kind",
    "Outcome",
    "OwnerChange",
    "Sent",
    "check_history",
]


def check_history(history: History) -> list[Anomaly]:
    """Name each anomaly of a history."""
    return [*Polls(history).anomalies(), *Writes(history).anomalies()]
