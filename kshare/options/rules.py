"""Options that depend on each other: what contradicts what, and what has no effect without what.

Guarantee: data, and one way to look at it. Each parser has a table of rules and gathers the facts;
:meth:`~kshare.options.raw.Faults.check` reports every rule that applies, none stops at the first.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kshare.ranges import RANGE_ASSIGNORS

__all__ = ["SINK_RULES", "SOURCE_RULES", "Rule", "applying", "idle"]


class Rule(NamedTuple):
    """Options that do not go together.

    A term is ``name``: the option is given, and not false; or ``name=value``: it has this value, in
    lower case. ``!`` in front: that is not so.

    Attributes:
        options: A term for each option that is wrong; the fault or the warning names it.
        when: Terms that all hold when the rule applies. Terms are separated by blanks.
        wrong: What is wrong.
        right: What would be right.
        is_warning: Whether the option has no effect, and is not refused.
    """

    options: str
    when: str
    wrong: str
    right: str = ""
    is_warning: bool = False


def idle(options: str, needed: str) -> Rule:
    """Options that have no effect without one of others, which ``or`` separates."""
    when = " ".join(f"!{term}" for term in needed.split(" or "))
    return Rule(options, when, f"has no effect without {needed}", is_warning=True)


def applying(rules: Iterable[Rule], facts: Mapping[str, Any]) -> Iterator[tuple[str, Rule]]:
    """The options that are wrong, by name, and the rule that says so.

    Args:
        rules: The rules.
        facts: Values by the name of the option; None, or no entry, for one that is not given.
    """
    for rule in rules:
        if all(_holds(term, facts) for term in rule.when.split()):
            for term in rule.options.split():
                if _holds(term, facts):
                    yield term.removeprefix("!").partition("=")[0], rule


def _holds(term: str, facts: Mapping[str, Any]) -> bool:
    name, has_value, wanted = term.removeprefix("!").partition("=")
    value = facts.get(name)
    holds = value is not None and value is not False
    if has_value:  # an option that is not given has no value, not even one that is called none
        holds = value is not None and str(value).lower() == wanted
    return holds is not term.startswith("!")


_NO_GROUP: Final = "needs kafka.group.id, the group to commit to"
_BY_KEY: Final = "goes by key ranges, which contradicts splitBy=offset"
_BATCHES: Final = "reads whole batches, which contradicts"
_LIMIT: Final = "limit with maxOffsetsPerTrigger"
_UNCUT: Final = "has no effect without keyRanges or minPartitions: nothing is cut"
_ASSIGNED: Final = "has no effect on partitions whose key ranges are given in assign"
_PART: Final = "reads some of the records, which contradicts commitOffsets=individual"
_NO_PART: Final = "commit no offsets, or give assign the ranges of key hashes to read"
_FOR_A_WHILE: Final = "bounds a micro-batch, and with realTime it reads for that time"
_OF_BATCH: Final = "is for streams: a batch query has no checkpoint that knows what was written"

SOURCE_RULES: Final = (
    Rule("keyRanges", "splitBy=offset", "cuts by key, which contradicts splitBy=offset"),
    Rule("keys maxRecordsPerTask targetTaskDuration parkedKeys", "splitBy=offset", _BY_KEY),
    Rule("rangeAssignor", "splitBy=offset", "has no effect with splitBy=offset", is_warning=True),
    Rule(
        " ".join(f"rangeAssignor={name}" for name in RANGE_ASSIGNORS),
        "!splitBy=offset !keyRanges !minPartitions !assign",
        _UNCUT,
        is_warning=True,
    ),
    Rule("splitBy=offset", "assign.ranges", "cannot be offset where assign has key ranges"),
    Rule(
        "keyRanges minPartitions maxRecordsPerPartition rangeAssignor",
        "assign.ranges",
        _ASSIGNED,
        is_warning=True,
    ),
    # They would count the records of these keys: after a restart with other keys, a batch would
    # end at other offsets, and records would be lost or come again.
    Rule("keys", "maxRecordsPerTask", f"{_BATCHES} maxRecordsPerTask", _LIMIT),
    Rule("keys", "targetTaskDuration", f"{_BATCHES} targetTaskDuration", _LIMIT),
    Rule("keys", "commitOffsets=individual", _PART, _NO_PART),
    Rule(
        "targetTaskDuration maxRecordsPerTask maxOffsetsPerTrigger minOffsetsPerTrigger "
        "maxTriggerDelay maxOffsetsAhead maxRecordsPerPartition",
        "realTime",
        _FOR_A_WHILE,
        "leave it out",
    ),
    Rule("splitBy=offset", "realTime", "has no effect with realTime", "cut by key hash"),
    Rule(
        "minPartitions=auto maxTasks=auto",
        "realTime",
        "goes by how long tasks take, and with realTime they take that time",
        "give a number",
    ),
    Rule("minPartitions=auto", "!stream", "is for streams", "give a number in batch queries"),
    Rule("commitOffsets=true commitOffsets=individual", "!kafka.group.id", _NO_GROUP),
    Rule(
        "startingOffsets=group", "!kafka.group.id", "needs kafka.group.id, the group to start from"
    ),
    idle("kafka.group.id", "commitOffsets or startingOffsets=group"),
    idle("realTime.topic", "realTime"),
    Rule(
        "taskAssignor maxRangesInCheckpoint",
        "realTime",
        "has no effect with realTime: each task reads its ranges for that time",
        is_warning=True,
    ),
    idle("individual.commit.topic", "commitOffsets=individual or startingOffsets=group"),
)
"""Of the source. ``stream``: it is a streaming query. ``assign.ranges``: ``assign`` has some."""

SINK_RULES: Final = (
    Rule("exactlyOnce", "!stream", _OF_BATCH, "leave it out"),
    Rule("kafka.enable.idempotence=false", "exactlyOnce", "must be true with exactlyOnce=true"),
    idle(
        "ledgerTopic transactionalIdPrefix dropRepeatedBatch kafka.transaction.timeout.ms",
        "exactlyOnce=true",
    ),
)
"""Of the sink. ``stream``: a stream's batches are written."""
