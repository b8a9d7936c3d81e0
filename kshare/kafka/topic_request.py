"""What is asked of brokers to make a topic of kshare's own, and what next if they refuse it.

::

    all settings --> no wishes --> cleanup.policy=compact alone   (settings are refused)
    named replicas --> as many --> the brokers' own number        (replicas are refused)

Guarantees: each request asks for less than the one before, so there are at most five; the
last one asks for nothing but ``cleanup.policy=compact``.

Pure: :mod:`kshare.kafka.topic_creation` asks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from kshare.kafka.protocol.error_codes import ErrorCode
from kshare.kafka.topics import TopicSpec

__all__ = [
    "DEFAULT_REPLICATION",
    "Placing",
    "Settings",
    "TopicRequest",
    "by_hand",
    "left_out",
    "next_request",
    "without_text",
]

DEFAULT_REPLICATION: Final = -1
"""The number of replicas is the brokers' own ``default.replication.factor`` (KIP-464)."""

_COMPACT: Final = {"cleanup.policy": "compact"}
_IN_SYNC: Final = "min.insync.replicas"
_GROWS: Final = (
    "the topic grows larger before it is compacted, and whoever starts has more of it to read"
)
_COSTS: Final = {
    "compression.type": "records are kept as the brokers compress them",
    "max.compaction.lag.ms": _GROWS,
    "max.message.bytes": "a record above the brokers' own max.message.bytes is refused, such as "
    "the ledger's of a batch with thousands of tasks",
    "min.cleanable.dirty.ratio": _GROWS,
    "min.insync.replicas": "what was written may be lost with the brokers that have it, if their "
    "own min.insync.replicas is lower",
    "replicas": "its partitions are on other brokers than those of __consumer_offsets, so a group "
    "needs one more broker",
    "retention.ms": "nothing, unless cleanup.policy is to delete, too",
    "segment.bytes": _GROWS,
    "segment.ms": _GROWS,
}


class Settings(IntEnum):
    """The settings that are asked for."""

    COMPACT = 0
    WITHOUT_WISHES = 1
    ALL = 2


class Placing(IntEnum):
    """The replicas that are asked for, and how."""

    DEFAULT = 0
    AS_MANY = 1
    NAMED = 2


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """A request to make a topic.

    Attributes:
        spec: How it should be.
        settings: What is asked for of the settings.
        placing: What is asked for of the replicas.
    """

    spec: TopicSpec
    settings: Settings
    placing: Placing

    @classmethod
    def first(cls, spec: TopicSpec) -> "TopicRequest":
        """The request that asks for all of it."""
        settings = Settings.ALL if spec.wishes else Settings.WITHOUT_WISHES
        placing = Placing.NAMED if spec.replicas else Placing.DEFAULT
        return cls(spec, settings if spec.wishes or spec.config else Settings.COMPACT, placing)

    @property
    def config(self) -> Mapping[str, str]:
        """The settings that are asked for."""
        spec = self.spec
        config = dict(spec.config) if self.settings >= Settings.WITHOUT_WISHES else {}
        wishes = dict(spec.wishes) if self.settings is Settings.ALL else {}
        if spec.replicas and self.placing is Placing.DEFAULT:
            # It is for as many replicas; with fewer, nobody could write to the topic.
            config.pop(_IN_SYNC, None)
        return {**_COMPACT, **config, **wishes}

    @property
    def asks_for(self) -> tuple[Mapping[str, str], Placing]:
        """The settings and the placing of replicas, which are all that brokers see."""
        return self.config, self.placing

    @property
    def replication(self) -> int:
        """The number of replicas that is asked for, unless they are named."""
        if self.placing is Placing.DEFAULT:
            return DEFAULT_REPLICATION
        return max(map(len, self.spec.replicas))


def next_request(request: TopicRequest, code: int | None) -> TopicRequest | None:
    """The request after a refusal; None if asking for less does not help.

    Args:
        request: What was refused.
        code: The error code of the refusal.
    """
    following = _following(request, code)
    if following is None or following.asks_for != request.asks_for:
        return following
    return next_request(following, code)


def _following(request: TopicRequest, code: int | None) -> TopicRequest | None:
    settings, placing = request.settings, request.placing
    match code:
        case ErrorCode.INVALID_REPLICA_ASSIGNMENT | ErrorCode.INVALID_REPLICATION_FACTOR:
            if placing > Placing.DEFAULT:
                # A broker that is named is gone for good: brokers choose as many of the others.
                return replace(request, placing=Placing(placing - 1))
        case ErrorCode.INVALID_CONFIG:
            if settings > Settings.COMPACT:
                return replace(request, settings=_fewer(request))
        case ErrorCode.POLICY_VIOLATION:
            if settings is Settings.ALL and request.spec.config:
                return replace(request, settings=Settings.WITHOUT_WISHES)
            if (settings, placing) != (Settings.COMPACT, Placing.DEFAULT):
                # A policy says no in words of its own: of settings, replicas, or both.
                return replace(request, settings=Settings.COMPACT, placing=Placing.DEFAULT)
        case _:
            return None
    # What else there is to leave out may be what is meant: codes are the services' own choice.
    bare = replace(request, settings=Settings.COMPACT, placing=Placing.DEFAULT)
    return None if bare == request else bare


def _fewer(request: TopicRequest) -> Settings:
    is_all = request.settings is Settings.ALL
    return Settings.WITHOUT_WISHES if is_all and request.spec.config else Settings.COMPACT


def left_out(request: TopicRequest) -> Mapping[str, str]:
    """The parts of the first request that this one leaves out: settings, and ``replicas``."""
    first = TopicRequest.first(request.spec)
    lacking = {name: value for name, value in first.config.items() if name not in request.config}
    if request.placing is not first.placing:
        numbers = [",".join(map(str, each)) for each in request.spec.replicas]
        lacking["replicas"] = "; ".join(dict.fromkeys(numbers))
    return lacking


def without_text(request: TopicRequest, refusals: Mapping[str, None]) -> str:
    """The warning of a topic that was made with less than it should have.

    Args:
        request: What brokers took.
        refusals: The brokers' words, in their order.
    """
    lacking = left_out(request)
    names = [f"{name}={value}" for name, value in lacking.items() if name != "replicas"]
    if "replicas" in lacking:
        names.append(f"replicas on the brokers {lacking['replicas']}")
    costs = dict.fromkeys(_COSTS.get(name, f"the brokers' own {name} holds") for name in lacking)
    return (
        f"topic {request.spec.name} was made without {', '.join(names)}, as the brokers refused "
        f"that: {'; '.join(refusals)}. What it costs: {'; '.join(costs)}"
    )


def by_hand(spec: TopicSpec, servers: str, *, needs_login: bool) -> str:
    """The command that makes a topic by hand, with what every service takes.

    Args:
        spec: The topic.
        servers: Bootstrap servers, with commas between them.
        needs_login: Whether a client needs more configuration than that.
    """
    words = ["kafka-topics.sh", "--bootstrap-server", servers]
    words += ["--command-config", "client.properties"] if needs_login else []
    words += ["--create", "--topic", spec.name, "--partitions", str(spec.partitions)]
    return " ".join([*words, "--config", "cleanup.policy=compact"])
