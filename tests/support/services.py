"""What services that speak Kafka's protocol offer, as librdkafka's mock brokers can be limited."""

from collections.abc import Mapping
from typing import Final

__all__ = ["EVENT_HUBS", "SERVICES"]

EVENT_HUBS: Final[Mapping[str, tuple[int, int]]] = {
    "Produce": (0, 7),
    "Fetch": (4, 6),
    "Metadata": (0, 5),
    "ListOffsets": (0, 2),
    "OffsetCommit": (0, 3),
    "OffsetFetch": (0, 3),
    "FindCoordinator": (0, 1),
    "JoinGroup": (0, 2),
    "Heartbeat": (0, 1),
    "LeaveGroup": (0, 1),
    "SyncGroup": (0, 1),
    "SaslHandshake": (0, 0),
    "InitProducerId": (0, 1),
    "DescribeProducers": (-1, -1),
    "ListTransactions": (-1, -1),
}
"""Azure Event Hubs: the lowest and the highest version of each request; -1, -1: none.

As Java's client logged it in 2019 (Azure/azure-event-hubs-for-kafka#69), but for Produce (a report
of 2024) and InitProducerId, which came later. Today it offers more; nothing here rests on that.
"""

_NONE: Final = (-1, -1)
SERVICES: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    "Event Hubs": EVENT_HUBS,
    "WarpStream": {"DescribeProducers": _NONE},
    "Oracle Streaming": {"InitProducerId": _NONE, "AddPartitionsToTxn": _NONE, "EndTxn": _NONE},
    "StreamNative Ursa": {
        "AddPartitionsToTxn": _NONE,
        "EndTxn": _NONE,
        "DescribeProducers": _NONE,
        "ListTransactions": _NONE,
    },
}
"""By name; a request that is not named is offered in all versions. docs/services.md has sources."""
