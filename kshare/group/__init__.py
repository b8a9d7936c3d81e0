"""Key-shared consumer groups on unmodified brokers.

Several processes of one consumer group share a partition, each a range of key hashes. What they
have processed they write as individual commits into a compacted topic.
"""

from typing import TYPE_CHECKING

from kshare.lazy import names_of

if TYPE_CHECKING:
    from kshare.assignment import HostInfo
    from kshare.errors import CommitFailedError, FencedError, TransactionAbortedError
    from kshare.group.consumer.async_consumer import AsyncKeySharedConsumer
    from kshare.group.consumer.consumer import KeySharedConsumer
    from kshare.group.consumer.subscriber import partitions_only
    from kshare.group.consumer.transaction import Transaction
    from kshare.group.log.primary import OffsetAndMetadata
    from kshare.group.message import Message
    from kshare.group.metrics import ConsumerHealth, ConsumerMetrics
    from kshare.group.prometheus import MetricsServer, register_metrics, serve_metrics
    from kshare.group.tools.offsets import GroupOffsets, list_offsets
    from kshare.group.tools.owners import GroupOwners, owner
    from kshare.group.tools.reset_target import ShiftBy
    from kshare.group.tools.restoration import StoreProgress, restore

__all__ = [
    "AsyncKeySharedConsumer",
    "CommitFailedError",
    "ConsumerHealth",
    "ConsumerMetrics",
    "FencedError",
    "GroupOffsets",
    "GroupOwners",
    "HostInfo",
    "KeySharedConsumer",
    "Message",
    "MetricsServer",
    "OffsetAndMetadata",
    "ShiftBy",
    "StoreProgress",
    "Transaction",
    "TransactionAbortedError",
    "list_offsets",
    "owner",
    "partitions_only",
    "register_metrics",
    "restore",
    "serve_metrics",
]

_HOMES = {
    "AsyncKeySharedConsumer": "kshare.group.consumer.async_consumer",
    "CommitFailedError": "kshare.errors",
    "ConsumerHealth": "kshare.group.metrics",
    "ConsumerMetrics": "kshare.group.metrics",
    "FencedError": "kshare.errors",
    "GroupOffsets": "kshare.group.tools.offsets",
    "GroupOwners": "kshare.group.tools.owners",
    "HostInfo": "kshare.assignment.interface.application",
    "KeySharedConsumer": "kshare.group.consumer.consumer",
    "Message": "kshare.group.message",
    "MetricsServer": "kshare.group.prometheus",
    "OffsetAndMetadata": "kshare.group.log.primary",
    "ShiftBy": "kshare.group.tools.reset_target",
    "StoreProgress": "kshare.group.tools.restoration",
    "Transaction": "kshare.group.consumer.transaction",
    "TransactionAbortedError": "kshare.errors",
    "list_offsets": "kshare.group.tools.offsets",
    "owner": "kshare.group.tools.owners",
    "partitions_only": "kshare.group.consumer.subscriber",
    "register_metrics": "kshare.group.prometheus",
    "restore": "kshare.group.tools.restoration",
    "serve_metrics": "kshare.group.prometheus",
}

__getattr__ = names_of(__name__, _HOMES)
