"""Public test kit: an embedded cluster, records to fill it with, and the order checker."""

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

__all__ = [
    "FakeCluster",
    "OrderReport",
    "Record",
    "RecordLike",
    "check_order",
    "produce",
    "produce_all",
    "skewed_records",
    "watermarks",
]
