"""The sink: Arrow batches to Kafka, at least once or, in streams, exactly once.

Guarantees: what is reported as written is on the brokers (acks as configured).

Cost: one call of librdkafka for each row, made from C; memory is bounded by the producer's queue
and one Arrow batch.
"""

from kshare.query.produce.model import Attempt, Prepared
from kshare.query.produce.sender import write_rows
from kshare.query.produce.transactions import check_exactly_once, prepare_rows

__all__ = ["Attempt", "Prepared", "check_exactly_once", "prepare_rows", "write_rows"]
