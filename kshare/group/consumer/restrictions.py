"""Checks what a consumer shares and commits against the policies of operators.

Guarantees: without individual commits, a consumer has whole partitions, and commits one offset of
each. Policies are looked at with each assignment and each commit, and are then 2 s old at most.
"""

import logging
from collections.abc import Collection, Iterable, Mapping

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import PolicyError
from kshare.group.protocol.membership.subscription import Assigned
from kshare.kafka.policies import INDIVIDUAL_COMMIT, RANGE_FETCH, Policy, PolicyWatch

__all__ = ["Restrictions"]

_log = logging.getLogger("kshare.group")


class Restrictions:
    """The policies of operators, as they apply to one consumer.

    Args:
        policies: The policies of its cluster.
        group: Id of its group.
    """

    def __init__(self, policies: PolicyWatch, group: str) -> None:
        self._policies = policies
        self._group = group
        self._warned = False

    def check(self, assignment: Assigned) -> None:
        """Refuse key ranges that a policy does not accept.

        Raises:
            PolicyError: There are such ranges.
            KafkaError: The policies cannot be read.
        """
        for tp, hashes in sorted(assignment.items()):
            if hashes.is_all:
                continue
            for policy in (Policy(INDIVIDUAL_COMMIT), Policy(RANGE_FETCH, tp.topic)):
                if not self._policies.accepts(policy):
                    of = f" of topic {policy.topic}" if policy.topic else ""
                    raise PolicyError(
                        f"group {self._group}, {tp}: key ranges are not accepted, as the policy "
                        f"{policy.name}{of} is false; assign whole partitions, or have kshare "
                        "policy set it to true",
                        policy=policy.name,
                        topic=policy.topic or None,
                    )

    def check_shared(self, topics: Iterable[str]) -> None:
        """Refuse chunks without key order, if a policy does not accept them.

        Raises:
            PolicyError: It does not.
            KafkaError: The policies cannot be read.
        """
        if not self.accepts_individual():
            raise PolicyError(
                f"group {self._group}: consumption.order=none is not accepted, as it commits "
                f"individual offsets, and the policy {INDIVIDUAL_COMMIT} is false",
                policy=INDIVIDUAL_COMMIT,
                topic=None,
            )
        for topic in sorted(set(topics)):
            if not self._policies.accepts(Policy(RANGE_FETCH, topic)):
                raise PolicyError(
                    f"group {self._group}: consumption.order=none is not accepted of topic "
                    f"{topic}, as members share its partitions, and its policy {RANGE_FETCH} is "
                    "false; use consumption.order=key, or have kshare policy set it to true",
                    policy=RANGE_FETCH,
                    topic=topic,
                )

    def whole_topics(self, topics: Collection[str]) -> dict[str, str]:
        """The topics whose partitions are not to be shared, each with the policy that says so.

        Raises:
            KafkaError: The policies cannot be read.
        """
        if not self.accepts_individual():
            return dict.fromkeys(sorted(topics), INDIVIDUAL_COMMIT)
        refused = (t for t in sorted(topics) if not self._policies.accepts(Policy(RANGE_FETCH, t)))
        return dict.fromkeys(refused, RANGE_FETCH)

    def allowed(
        self,
        processed: Mapping[TopicPartition, Progress],
        assignment: Assigned,
        *,
        is_subscribed: bool = False,
    ) -> dict[TopicPartition, Progress]:
        """What may be committed of what is processed.

        Args:
            processed: What is processed of each partition.
            assignment: What the consumer has of it.
            is_subscribed: Whether the group assigns it. Then key ranges that a policy does not
                accept any more are committed until the group has assigned whole partitions.

        Raises:
            PolicyError, KafkaError: As for :meth:`check`.
        """
        own = {tp: assignment[tp] for tp in processed if tp in assignment}
        if not is_subscribed:
            self.check(own)
        elif not all(hashes.is_all for hashes in own.values()):
            return dict(processed)
        if self.accepts_individual():
            self._warned = False
            return dict(processed)
        if not self._warned:
            _log.warning(
                "group %s commits one offset of each partition, as the policy %s is false: what "
                "is processed above comes again after a restart",
                self._group,
                INDIVIDUAL_COMMIT,
            )
            self._warned = True
        return {tp: Progress.at(progress.stable) for tp, progress in processed.items()}

    def accepts_individual(self) -> bool:
        """True if individual offsets may be committed.

        Raises:
            KafkaError: The policies cannot be read.
        """
        return self._policies.accepts(Policy(INDIVIDUAL_COMMIT))

    def close(self) -> None:
        """Close the connections."""
        self._policies.close()
