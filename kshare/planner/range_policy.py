"""Policies of operators: topics that are not to be shared, and no individual commits."""

from collections.abc import Collection

from kshare.cluster.policies import INDIVIDUAL_COMMIT, RANGE_FETCH, Policy, PolicyView
from kshare.core.progress import TopicPartition
from kshare.errors import OptionsError, PolicyError
from kshare.options import Assign, SourceOptions
from kshare.ranges import BY_PENDING

__all__ = ["check_ranges"]


def check_ranges(
    options: SourceOptions, partitions: Collection[TopicPartition], policies: PolicyView | None
) -> None:
    """Refuse to share partitions of topics, and individual commits, where a policy says so.

    Args:
        options: The query's options.
        partitions: The partitions that it reads.
        policies: The policies; None checks nothing.

    Raises:
        OptionsError: An option asks for parts of a partition of such a topic.
        PolicyError: The query publishes individual commits, and they are not accepted.
        KafkaError: The policies cannot be read.
    """
    if policies is None:
        return
    if options.commits_individually and not policies.accepts(Policy(INDIVIDUAL_COMMIT)):
        raise PolicyError(
            "commitOffsets=individual is not accepted, as the policy "
            f"{INDIVIDUAL_COMMIT} is false: set commitOffsets=true, which commits one offset of "
            "each partition, or have kshare policy set it to true",
            policy=INDIVIDUAL_COMMIT,
            topic=None,
        )
    parts = "key ranges" if options.split_by == "key" else "parts of partitions (splitBy=offset)"
    faults = [
        f"{option}: asks for {parts} of topic {topic}, whose policy {RANGE_FETCH} is false; "
        "read whole partitions, or have kshare policy set it to true"
        for topic in sorted({tp.topic for tp in partitions})
        if (option := _asking(options, topic, len(partitions))) is not None
        and not policies.accepts(Policy(RANGE_FETCH, topic))
    ]
    if faults:
        raise OptionsError(faults)


def _asking(options: SourceOptions, topic: str, partitions: int) -> str | None:
    """The option that asks for parts of partitions of a topic; None if there is none."""
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
    if options.split_by == "offset":
        return None
    return None if options.range_assignor in BY_PENDING else "rangeAssignor"
