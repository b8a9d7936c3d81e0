"""``accept.range.fetch``: topics that operators do not let be read by ranges of key hashes."""

from collections.abc import Collection
from typing import Final, Protocol

from kshare.cluster.policies import RANGE_FETCH, Policy
from kshare.core.progress import TopicPartition
from kshare.errors import OptionsError
from kshare.options import Assign, SourceOptions

__all__ = ["PolicyView", "check_ranges"]

_WHOLE_PARTITIONS: Final = {"round-robin", "lag-weighted"}
"""Range assignors that cut a partition only if another option asks for it."""


class PolicyView(Protocol):
    """The policies: see :class:`~kshare.cluster.policies.PolicyWatch`."""

    def accepts(self, policy: Policy, /) -> bool:
        """Whether a policy accepts."""

    def close(self) -> None:
        """Close the connections."""


def check_ranges(
    options: SourceOptions, partitions: Collection[TopicPartition], policies: PolicyView | None
) -> None:
    """Refuse key ranges of topics whose policy does not accept them.

    Args:
        options: The query's options.
        partitions: The partitions that it reads.
        policies: The policies; None checks nothing.

    Raises:
        OptionsError: An option asks for key ranges of such a topic.
        KafkaError: The policies cannot be read.
    """
    if policies is None or options.split_by == "offset":
        return
    faults = [
        f"{option}: asks for key ranges of topic {topic}, whose policy {RANGE_FETCH} is false; "
        "read whole partitions, or have kshare policy set it to true"
        for topic in sorted({tp.topic for tp in partitions})
        if (option := _asking(options, topic, len(partitions))) is not None
        and not policies.accepts(Policy(RANGE_FETCH, topic))
    ]
    if faults:
        raise OptionsError(faults)


def _asking(options: SourceOptions, topic: str, partitions: int) -> str | None:
    """The option that asks for key ranges of a topic; None if there is none."""
    if isinstance(options.topics, Assign):
        ranges = (parts for tp, parts in options.topics.partitions.items() if tp.topic == topic)
        if any(ranges):
            return "assign"
    if options.key_ranges is not None and options.key_ranges > 1:
        return "keyRanges"
    if options.min_partitions_auto or (options.min_partitions or 0) > partitions:
        return "minPartitions"
    if options.max_records_per_partition is not None:
        return "maxRecordsPerPartition"
    return None if options.range_assignor in _WHOLE_PARTITIONS else "rangeAssignor"
