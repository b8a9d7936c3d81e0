"""Kafka's requests that kshare sends: in which versions, and what for.

Guarantees: a request of ours is encoded in one of these versions, and in no other one: they are
those whose layout its module was written and tested for. What a broker does not speak is known
before anything is asked of it.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["APIS", "Api", "Feature", "Lack", "api_of", "lacks"]


class Feature(Enum):
    """The parts of kshare that users know."""

    SOURCE = "reading"
    GROUPS = "consumer groups"
    LOGIN = "SASL logins"
    SINK = "writing"
    IDEMPOTENCE = "writing each record once, whatever is sent again"
    EXACTLY_ONCE = "exactlyOnce"
    TRANSACTIONS = "transactions of consumers"
    OWN_TOPICS = "making topics of our own"
    FENCING = "ending transactions that nobody ends"
    CLEAN_UP = "ending open transactions of earlier runs at once"
    SHOWING = "showing who is in a group"
    REAL_TIME = "realTime"
    RETENTION = "a warning before retention deletes what is pending"


@dataclass(frozen=True, slots=True)
class Api:
    """A request of Kafka's protocol.

    Attributes:
        name: Kafka's name of it.
        key: Its number.
        lowest: The lowest version that will do.
        highest: The highest version that is spoken.
        needed_by: What does without it no more.
        by_librdkafka: Whether librdkafka sends it; then it chooses the version.
    """

    name: str
    key: int
    lowest: int
    highest: int
    needed_by: tuple[Feature, ...]
    by_librdkafka: bool = False


@dataclass(frozen=True, slots=True)
class Lack:
    """A request that a broker does not speak as it is needed.

    Attributes:
        api: The request.
        offered: The versions that the broker speaks; None if it does not know the request.
    """

    api: Api
    offered: tuple[int, int] | None


_ALL_READING: Final = (Feature.SOURCE, Feature.GROUPS)
_WRITING: Final = (Feature.GROUPS, Feature.SINK, Feature.REAL_TIME)
_DECIDING: Final = (Feature.EXACTLY_ONCE, Feature.TRANSACTIONS)

APIS: Final[Mapping[int, Api]] = {
    api.key: api
    for api in (
        # 4: isolation level, batches of Kafka 0.11; 5: start of the log; 7: sessions, an error of
        # the whole request; 9: leader epochs; 11: the nearest replica.
        Api("Fetch", 1, 4, 11, _ALL_READING),
        Api("ListOffsets", 2, 1, 5, _ALL_READING),  # 2: isolation level; 4: leader epochs
        Api("Metadata", 3, 4, 12, _ALL_READING),  # 10: topic ids
        Api("OffsetCommit", 8, 2, 7, (Feature.GROUPS,)),  # 7: static members
        Api("OffsetFetch", 9, 2, 7, (Feature.GROUPS,)),  # 5: leader epochs; 7: stable offsets
        Api("FindCoordinator", 10, 1, 3, (Feature.GROUPS, *_DECIDING)),
        # 5: static members; 9: a static leader hears that its group stays assigned (KIP-814).
        Api("JoinGroup", 11, 2, 9, (Feature.GROUPS,)),
        Api("Heartbeat", 12, 1, 3, (Feature.GROUPS,)),  # 3: static members
        Api("LeaveGroup", 13, 1, 1, (Feature.GROUPS,)),
        Api("SyncGroup", 14, 1, 3, (Feature.GROUPS,)),  # 3: static members
        Api("DescribeGroups", 15, 1, 4, (Feature.SHOWING,)),
        Api("SaslHandshake", 17, 0, 1, (Feature.LOGIN,)),  # 0: tokens follow without a frame
        Api("ApiVersions", 18, 0, 3, ()),
        Api("InitProducerId", 22, 0, 4, (Feature.IDEMPOTENCE, *_DECIDING)),
        Api("AddPartitionsToTxn", 24, 0, 3, _DECIDING),
        Api("EndTxn", 26, 0, 3, _DECIDING),  # from 5 on a broker answers with another epoch
        Api("SaslAuthenticate", 36, 0, 1, ()),
        Api("DescribeProducers", 61, 0, 0, (Feature.FENCING,)),
        Api("ListTransactions", 66, 0, 0, (Feature.CLEAN_UP, Feature.FENCING)),
        # What librdkafka sends for kshare. Produce: 3, headers and batches of Kafka 0.11.
        Api("Produce", 0, 3, 10, (*_WRITING, *_DECIDING), by_librdkafka=True),
        Api("CreateTopics", 19, 0, 4, (Feature.OWN_TOPICS,), by_librdkafka=True),
        Api("DescribeConfigs", 32, 0, 1, (Feature.RETENTION,), by_librdkafka=True),
    )
}
"""By number."""


def api_of(key: int) -> Api:
    """The request with a number.

    Raises:
        KeyError: There is no such request.
    """
    return APIS[key]


def lacks(offered: Mapping[int, tuple[int, int]]) -> list[Lack]:
    """The requests that a broker does not speak.

    Args:
        offered: By the requests' numbers the lowest and the highest version, as the broker says.

    Returns:
        The requests of :data:`APIS` of which it speaks no version that will do, by number.
    """
    found = []
    for key, api in sorted(APIS.items()):
        lowest, highest = offered.get(key, (0, -1))
        if min(highest, api.highest) < max(lowest, api.lowest):
            found.append(Lack(api, offered.get(key)))
    return found
