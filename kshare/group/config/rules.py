"""Configurations of a consumer that depend on each other, as rows of tables."""

from typing import Any, Final

from kshare.group.config.table import CONFIGS, ConsumerConfig
from kshare.group.protocol.membership.report import ROUND_ROBIN
from kshare.group.protocol.membership.subscription import RANGE
from kshare.options.rules import Rule, idle

__all__ = ["CONSUMER_RULES", "facts_of", "needs_explicit"]

_EITHER: Final = "leave out one of them"
_WITH_EACH: Final = "what is processed is committed with each transaction"
_LOADS: Final = f"load is known of what a member has, and not of each of its ranges: {_EITHER}"
_IN_NO_ORDER: Final = "has no effect with consumption.order=none"
_PLAIN: Final = f"partition.assignment.strategy={RANGE}"
_REPLACED: Final = f"leave out {RANGE}, once all plain consumers are replaced"

CONSUMER_RULES: Final = (
    Rule("enable.auto.commit", "transactional.id", "contradicts transactional.id", _WITH_EACH),
    *(
        Rule("consumption.order=none", term, f"none contradicts {term.partition('=')[0]}", _EITHER)
        for term in ("allow.individual.commit=false", "keys", "transactional.id")
    ),
    *(
        Rule(_PLAIN, term, f"{RANGE} contradicts {term}", _REPLACED)
        for term in ("consumption.order=none", "transactional.id")
    ),
    Rule("minPartitions", "rangeAssignor=adaptive", "contradicts rangeAssignor=adaptive", _LOADS),
    Rule(
        "rangeAssignor",
        f"!rangeAssignor={ROUND_ROBIN} consumption.order=none",
        _IN_NO_ORDER,
        is_warning=True,
    ),
    Rule("taskAssignor", "consumption.order=none", _IN_NO_ORDER, is_warning=True),
    idle("purgatory transaction.timeout.ms", "transactional.id"),
    idle("cooperative.chunk.records cooperative.lease.timeout.ms", "consumption.order=none"),
    idle("minPartitions stateful", "taskAssignor"),
)
"""Contradictions, and configurations without effect."""


def facts_of(config: ConsumerConfig) -> dict[str, Any]:
    """The values of a consumer's own configurations by name, for rules."""
    return {each.name: getattr(config, each.field) for each in CONFIGS.values()}


def needs_explicit(why: str) -> Rule:
    """The rule of what needs ``acknowledgement.mode=explicit``, and why."""
    right = f"{why}: set acknowledgement.mode=explicit"
    return Rule("!acknowledgement.mode", "", "is implicit", right)
