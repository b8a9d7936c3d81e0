"""Verdicts on kshare's features on a cluster, by what it lacks.

Pure: facts in, verdicts out. One more thing that lacks never makes a verdict better.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from kshare.core.listing import counted
from kshare.kafka.protocol import apis
from kshare.options.sink import TRANSACTION_TIMEOUT_MS

__all__ = [
    "TOUCHED",
    "Ability",
    "Feature",
    "Lack",
    "Verdict",
    "judged",
    "lacks_of_apis",
    "lacks_of_settings",
    "text_of_api",
]


class Feature(StrEnum):
    """A part of kshare that people ask for by name."""

    SOURCE = "source"
    GROUPS = "groups"
    EXACTLY_ONCE = "exactly once"
    REAL_TIME = "real time"
    PARKED_KEYS = "parked keys"
    DEAD_LETTERS = "dead letters"


class Ability(IntEnum):
    """The share of a feature that there is."""

    NONE = 0
    PART = 1
    WHOLE = 2


NEEDS: Final[Mapping[Feature, Feature]] = {
    Feature.REAL_TIME: Feature.SOURCE,
    Feature.DEAD_LETTERS: Feature.GROUPS,
}
"""The feature that another one stands on: processors read as members of a group."""


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that a cluster lacks, refuses or hides.

    Attributes:
        feature: The feature that it touches.
        text: What lacks.
        without: What the feature then does without; empty if it does not work at all.
        remedy: What to do; empty if nothing can be done.
    """

    feature: Feature
    text: str
    without: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a feature.

    Attributes:
        feature: The feature.
        ability: How much of it there is.
        text: The same in words, with the reasons.
        remedy: What to do; empty if nothing has to be done, or can be.
    """

    feature: Feature
    ability: Ability
    text: str
    remedy: str = ""


def judged(lacks: Iterable[Lack]) -> tuple[Verdict, ...]:
    """A verdict on each feature, in the order of :class:`Feature`.

    Args:
        lacks: All that lacks, in any order; what is said twice counts once.
    """
    by_feature: dict[Feature, list[Lack]] = {feature: [] for feature in Feature}
    for lack in dict.fromkeys(lacks):
        by_feature[lack.feature].append(lack)
    verdicts: dict[Feature, Verdict] = {}
    for feature, found in by_feature.items():
        base = verdicts.get(NEEDS[feature]) if feature in NEEDS else None
        verdicts[feature] = _verdict(feature, found, base)
    return tuple(verdicts.values())


def _verdict(feature: Feature, lacks: Collection[Lack], base: Verdict | None) -> Verdict:
    vital = [lack for lack in lacks if not lack.without]
    if base is not None and base.ability is Ability.NONE:
        do = "does" if base.feature is Feature.SOURCE else "do"
        vital.append(Lack(feature, f"{base.feature} {do} not work", remedy=base.remedy))
    if vital:
        text = f"does not work: {'; '.join(lack.text for lack in vital)}"
        return Verdict(feature, Ability.NONE, text, _remedies(vital))
    if lacks:
        reasons: dict[str, list[str]] = {}
        for lack in lacks:
            reasons.setdefault(lack.without, []).append(lack.text)
        losses = "; ".join(f"{loss} ({', '.join(why)})" for loss, why in reasons.items())
        return Verdict(feature, Ability.PART, f"works without {losses}", _remedies(lacks))
    return Verdict(feature, Ability.WHOLE, "works")


def _remedies(lacks: Iterable[Lack]) -> str:
    return "; ".join(dict.fromkeys(lack.remedy for lack in lacks if lack.remedy))


# -- requests --------------------------------------------------------------------------------------

TOUCHED: Final[Mapping[apis.Feature, tuple[Feature, str]]] = {
    apis.Feature.SOURCE: (Feature.SOURCE, ""),
    apis.Feature.GROUPS: (Feature.GROUPS, ""),
    apis.Feature.SINK: (Feature.PARKED_KEYS, ""),  # they are written as rows are
    apis.Feature.IDEMPOTENCE: (Feature.GROUPS, apis.Feature.IDEMPOTENCE.value),
    apis.Feature.EXACTLY_ONCE: (Feature.EXACTLY_ONCE, ""),
    apis.Feature.TRANSACTIONS: (Feature.GROUPS, apis.Feature.TRANSACTIONS.value),
    apis.Feature.FENCING: (Feature.GROUPS, apis.Feature.FENCING.value),
    apis.Feature.CLEAN_UP: (Feature.EXACTLY_ONCE, apis.Feature.CLEAN_UP.value),
    apis.Feature.SHOWING: (Feature.GROUPS, apis.Feature.SHOWING.value),
    apis.Feature.REAL_TIME: (Feature.REAL_TIME, ""),
    apis.Feature.RETENTION: (Feature.SOURCE, apis.Feature.RETENTION.value),
}
"""The feature that people ask for, and what it does without; empty if it does not work.

Who has asked for versions has logged in, and whether topics can be made is tried.
"""


def lacks_of_apis(lacking: Iterable[apis.Lack]) -> tuple[Lack, ...]:
    """The lacks of features for requests that brokers do not speak as they are needed.

    Args:
        lacking: Those requests.
    """
    return tuple(
        Lack(TOUCHED[use][0], text_of_api(lack), TOUCHED[use][1])
        for lack in lacking
        for use in lack.api.needed_by
        if use in TOUCHED
    )


def text_of_api(lack: apis.Lack) -> str:
    """The words for a request that lacks, such as ``Fetch 0 to 3 (needed: 4 to 11)``."""
    if lack.offered is None:
        return f"no {lack.api.name}"
    wanted = (
        f"{lack.api.lowest} or later"
        if lack.api.by_librdkafka
        else f"{lack.api.lowest} to {lack.api.highest}"
    )
    return f"{lack.api.name} {lack.offered[0]} to {lack.offered[1]} (needed: {wanted})"


# -- settings of brokers ---------------------------------------------------------------------------

MESSAGE_BYTES: Final = 1_048_588
"""Kafka's default of ``message.max.bytes``: what kshare's records are made for."""

_WRITING: Final = (Feature.GROUPS, Feature.EXACTLY_ONCE, Feature.REAL_TIME, Feature.PARKED_KEYS)


def lacks_of_settings(
    settings: Mapping[str, str], brokers: int, missing: Collection[str]
) -> tuple[Lack, ...]:
    """The lacks of features for the settings of brokers.

    Args:
        settings: Of a broker, by name; those that it does not say are passed over.
        brokers: How many brokers there are.
        missing: Topics of Kafka's own that are not there yet.
    """
    lacks: list[Lack] = []
    in_sync = _number(settings, "min.insync.replicas")
    copies = min(_number(settings, "default.replication.factor") or brokers, brokers)
    if in_sync is not None and copies < in_sync:
        text = (
            f"a new topic has {counted(copies, 'replica')}, min.insync.replicas={in_sync}; older "
            "brokers then refuse all that is written"
        )
        remedy = "raise default.replication.factor, start more brokers, or lower it"
        losses = "the copies that min.insync.replicas asks for"
        lacks += [Lack(each, text, losses, remedy) for each in _WRITING]
    for topic, name, feature in (
        ("__consumer_offsets", "offsets.topic.replication.factor", Feature.GROUPS),
        ("__transaction_state", "transaction.state.log.replication.factor", Feature.EXACTLY_ONCE),
    ):
        wanted = _number(settings, name)
        if topic in missing and wanted is not None and wanted > brokers:
            text = f"{topic} is not there, and needs {name}={wanted}, but {_count(brokers)}"
            lacks.append(Lack(feature, text, remedy=f"start more brokers, or lower {name}"))
    longest = _number(settings, "transaction.max.timeout.ms")
    if longest is not None and longest < TRANSACTION_TIMEOUT_MS:
        wanted_ms = f"{TRANSACTION_TIMEOUT_MS:,}"
        text = f"transaction.max.timeout.ms={longest:,} is below the {wanted_ms} of sinks"
        remedy = f"set kafka.transaction.timeout.ms={longest}"
        lacks.append(Lack(Feature.EXACTLY_ONCE, text, f"batches of over {longest:,} ms", remedy))
    largest = _number(settings, "message.max.bytes")
    if largest is not None and largest < MESSAGE_BYTES:
        text = f"message.max.bytes={largest:,} is below Kafka's default of {MESSAGE_BYTES:,}"
        lacks.append(Lack(Feature.GROUPS, text, "its largest numbers of members and partitions"))
        lacks.append(Lack(Feature.DEAD_LETTERS, text, "the values of records near that size"))
    return tuple(lacks)


def _count(brokers: int) -> str:
    return f"there {'is' if brokers == 1 else 'are'} {counted(brokers, 'broker')}"


def _number(settings: Mapping[str, str], name: str) -> int | None:
    value = settings.get(name, "")
    return int(value) if value.lstrip("-").isdigit() else None
