"""The configs of task assignment: KIP-924's AssignmentConfigs.

Guarantee: exactly the values that Kafka accepts are accepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["CONFIG_NAMES", "STRATEGIES", "TAGS_MAX", "AssignmentConfigs"]

STRATEGIES: Final = ("none", "min_traffic", "balance_subtopology")
"""The values of ``rack.aware.assignment.strategy``."""

TAGS_MAX: Final = 5
"""Maximum number of client tags in ``rack.aware.assignment.tags``."""

CONFIG_NAMES: Final = {
    "acceptable.recovery.lag": "acceptable_recovery_lag",
    "max.warmup.replicas": "max_warmup_replicas",
    "num.standby.replicas": "num_standby_replicas",
    "probing.rebalance.interval.ms": "probing_rebalance_interval_ms",
    "rack.aware.assignment.tags": "rack_aware_assignment_tags",
    "rack.aware.assignment.traffic_cost": "rack_aware_traffic_cost",
    "rack.aware.assignment.non_overlap_cost": "rack_aware_non_overlap_cost",
    "rack.aware.assignment.strategy": "rack_aware_assignment_strategy",
}
"""Kafka's name of each config, and the field that holds it."""


@dataclass(frozen=True, slots=True)
class AssignmentConfigs:
    """The configs of an assignor. Only lower bounds are checked, as in Kafka.

    Attributes:
        acceptable_recovery_lag: Greatest lag, in offsets, at which a copy is caught up; >= 0.
        max_warmup_replicas: Maximum number of copies that warm up at once; >= 1.
        num_standby_replicas: Standbys of each task with a changelog. Not checked, as in Kafka;
            below 0 is none.
        probing_rebalance_interval_ms: Milliseconds until a follow-up rebalance; >= 60000.
        rack_aware_assignment_tags: Client tags in which the copies of a task should differ; at
            most 5.
        rack_aware_traffic_cost: Cost of a partition read from another rack; None: not configured.
        rack_aware_non_overlap_cost: Cost of a task that moves; None: not configured.
        rack_aware_assignment_strategy: One of :data:`STRATEGIES`.

    Raises:
        ValueError: a value is out of bounds; the text is Kafka's, with Kafka's config name.
    """

    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2
    num_standby_replicas: int = 0
    probing_rebalance_interval_ms: int = 600_000
    rack_aware_assignment_tags: tuple[str, ...] = ()
    rack_aware_traffic_cost: int | None = None
    rack_aware_non_overlap_cost: int | None = None
    rack_aware_assignment_strategy: str = "none"

    def __post_init__(self) -> None:
        _at_least(0, "acceptable.recovery.lag", self.acceptable_recovery_lag)
        _at_least(1, "max.warmup.replicas", self.max_warmup_replicas)
        _at_least(60_000, "probing.rebalance.interval.ms", self.probing_rebalance_interval_ms)
        tags = tuple(self.rack_aware_assignment_tags)
        object.__setattr__(self, "rack_aware_assignment_tags", tags)
        if len(tags) > TAGS_MAX:
            raise _invalid(
                f"[{', '.join(tags)}]",
                "rack.aware.assignment.tags",
                f"exceeds maximum list size of [{TAGS_MAX}].",
            )
        if self.rack_aware_assignment_strategy not in STRATEGIES:
            raise _invalid(
                self.rack_aware_assignment_strategy,
                "rack.aware.assignment.strategy",
                f"String must be one of: {', '.join(STRATEGIES)}",
            )

    @property
    def has_rack_aware_costs(self) -> bool:
        """True if both costs are configured."""
        return (
            self.rack_aware_traffic_cost is not None
            and self.rack_aware_non_overlap_cost is not None
        )

    @classmethod
    def from_configs(cls, configs: Mapping[str, Any]) -> "AssignmentConfigs":
        """Take the configs with Kafka's names, as text or as values, and ignore the rest.

        Raises:
            ValueError: a text is no whole number, or a value is out of bounds.
        """
        values: dict[str, Any] = {}
        for name, field in CONFIG_NAMES.items():
            if (value := configs.get(name)) is None:
                continue
            if field == "rack_aware_assignment_tags":
                tags = value.split(",") if isinstance(value, str) else value
                value = tuple(tag.strip() for tag in tags if tag.strip())
            elif field != "rack_aware_assignment_strategy" and isinstance(value, str):
                try:
                    value = int(value)
                except ValueError:
                    raise _invalid(value, name, "Not a whole number") from None
            values[field] = value
        return cls(**values)


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise _invalid(value, name, f"Value must be at least {least}")


def _invalid(value: object, name: str, fault: str) -> ValueError:
    return ValueError(f"Invalid value {value} for configuration {name}: {fault}")
