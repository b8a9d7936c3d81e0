"""Policies: what operators do not allow, for the whole cluster or for a topic.

They are kept in a compacted topic of one partition. A record's key is ``{"policy": name, "topic":
name}`` as JSON, the topic being empty for the whole cluster. Its value is ``{"by": who, "value":
"true" | "false", "when": time, "why": text}``. A policy that is not set is ``true``.

Cost: as for :mod:`kshare.kafka.parked_keys`.
"""

import threading
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

from kshare.kafka.protocol.retry import Clock
from kshare.kafka.topic_table import TableTexts, TopicTable, TopicWatch, json_bytes, texts_of
from kshare.kafka.topics import POLICIES_TOPIC, TopicSpec
from kshare.options import KafkaConfig

__all__ = [
    "INDIVIDUAL_COMMIT",
    "POLICY_NAMES",
    "RANGE_FETCH",
    "Policies",
    "Policy",
    "PolicyInfo",
    "PolicyWatch",
]

INDIVIDUAL_COMMIT: Final = "accept.individual.commit"
"""True if groups may share partitions and commit individual offsets; for the whole cluster."""

RANGE_FETCH: Final = "accept.range.fetch"
"""True if a topic may be read by ranges of key hashes."""

POLICY_NAMES: Final = (INDIVIDUAL_COMMIT, RANGE_FETCH)


class Policy(NamedTuple):
    """The subject of a policy.

    Attributes:
        name: Its name.
        topic: The topic; empty for the whole cluster.
    """

    name: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """The setting of a policy.

    Attributes:
        value: Whether it is accepted.
        since: When it was set: ISO 8601, in UTC.
        by: Who set it; may be empty.
        why: Text for people; may be empty.
    """

    value: bool
    since: str
    by: str = ""
    why: str = ""


class Policies(TopicTable[Policy, PolicyInfo]):
    """The policies of a cluster: read and changed.

    Every method raises a :class:`~kshare.errors.KafkaError` if the cluster does not answer within
    ``default.api.timeout.ms``, or refuses.
    """

    spec = TopicSpec(POLICIES_TOPIC, 1, {"retention.ms": "-1"})
    reader = "kshare-policies"
    texts = TableTexts(
        record="a policy",
        loss="policies will not last",
        unauthorized="not authorized to read the policies, going on without them: if any are set, "
        f"grant this principal the right Read on topic {POLICIES_TOPIC}",
        refused=f"the policies (topic {POLICIES_TOPIC}) cannot be read, and nothing starts without "
        "them, as it would not obey them",
        stale=f"cannot read the policies (topic {POLICIES_TOPIC}), going on with the {{count}} "
        "that were last seen",
        repair="'kshare policy list --drop-damaged' deletes what cannot be read",
    )

    @staticmethod
    def decode_key(data: bytes | None) -> Policy:  # noqa: D102
        return Policy(*texts_of(data, "policy", "topic"))

    @staticmethod
    def decode_value(data: bytes) -> PolicyInfo:  # noqa: D102
        value, when, by, why = texts_of(data, "value", "when", "by", "why")
        if value not in {"true", "false"}:
            raise ValueError(f"the value is {value!r}; wanted true or false")
        return PolicyInfo(value == "true", when, by, why)

    def set(self, policy: Policy, value: bool, *, why: str = "", by: str = "") -> None:
        """Set a policy.

        Raises:
            ValueError: There is no such policy, or not for a topic, or not for the cluster.
        """
        _check(policy)
        self.read()
        info = {"by": by, "value": str(value).lower(), "when": self.stamp(), "why": why}
        self.put([(_encode_key(policy), json_bytes(info))])

    def unset(self, policy: Policy) -> bool:
        """Take a policy away, as if it had never been set: it accepts.

        Returns:
            Whether it was set.

        Raises:
            ValueError: As for :meth:`set`.
        """
        _check(policy)
        is_set = policy in self.read()
        if is_set:
            self.delete([_encode_key(policy)])
        return is_set


def _check(policy: Policy) -> None:
    if policy.name not in POLICY_NAMES:
        raise ValueError(f"no policy is named {policy.name!r}")
    if (policy.name == RANGE_FETCH) != bool(policy.topic):
        of = "a topic" if policy.name == RANGE_FETCH else "the whole cluster"
        raise ValueError(f"{policy.name} is a policy of {of}")


def _encode_key(policy: Policy) -> bytes:
    return json_bytes({"policy": policy.name, "topic": policy.topic})


class PolicyWatch:
    """The policies as a running query or consumer goes by them. For any thread.

    Args:
        kafka: How to reach the cluster.
        look_seconds: Maximum time that a look may take after the first one.
        clock: Source of time.
    """

    def __init__(
        self, kafka: KafkaConfig, *, look_seconds: float = 5.0, clock: Clock = time
    ) -> None:
        self._lock = threading.RLock()  # a signal handler may close a consumer amid a look
        self._watch = TopicWatch(Policies, kafka, look_seconds=look_seconds, clock=clock)

    def accepts(self, policy: Policy) -> bool:
        """True if a policy accepts, as it was at most 2 s ago or is last known.

        Raises:
            KafkaError: The policies have never been read, and cannot be within
                ``default.api.timeout.ms``. The next call tries again.
        """
        with self._lock:
            info = self._watch.current().get(policy)
        return info is None or info.value

    def close(self) -> None:
        """Close the connections."""
        self._watch.close()
