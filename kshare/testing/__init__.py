"""Public test kit: an embedded cluster, records to fill it with, checks of order and assignors.

:class:`FakeCluster` is a Kafka cluster in this process, :class:`FakeRegistry` a schema registry,
:func:`skewed_records` fill the cluster,
:func:`check_order` finds lost, duplicated and out-of-order records in what a sink received, and
:func:`check_assignor` tries a task assignor on :func:`situations`.
"""

from kshare.testing.assignors import AssignorReport, check_assignor
from kshare.testing.cluster import FakeCluster
from kshare.testing.order import OrderReport, check_order
from kshare.testing.records import (
    Record,
    RecordLike,
    produce,
    produce_all,
    skewed_records,
    watermarks,
)
from kshare.testing.registry import FakeRegistry
from kshare.testing.situations import situations

__all__ = [
    "AssignorReport",
    "FakeCluster",
    "FakeRegistry",
    "OrderReport",
    "Record",
    "RecordLike",
    "check_assignor",
    "check_order",
    "produce",
    "produce_all",
    "situations",
    "skewed_records",
    "watermarks",
]
