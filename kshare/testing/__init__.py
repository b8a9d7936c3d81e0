"""Public test kit: an embedded cluster, records to fill it with, checks of order and assignors."""

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
from kshare.testing.situations import situations

__all__ = [
    "AssignorReport",
    "FakeCluster",
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
