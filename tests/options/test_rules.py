"""Rules of options that depend on each other: when they apply, and that their names are options."""

import pytest

from kshare.group.config.rules import CONSUMER_RULES
from kshare.group.config.table import CONFIGS
from kshare.options.kafka_table import PROPERTIES
from kshare.options.producer_table import PRODUCER_PROPERTIES
from kshare.options.raw import Faults
from kshare.options.rules import SINK_RULES, SOURCE_RULES, Rule, applying, idle
from kshare.options.table import OPTIONS

_FACTS = {"stream", "assign.ranges"}


@pytest.mark.parametrize(
    ("terms", "facts", "applies"),
    [
        ("a", {"a": "text"}, True),
        ("a", {"a": 0}, True),
        ("a", {"a": False}, False),
        ("a", {"a": None}, False),
        ("a", {}, False),
        ("!a", {}, True),
        ("!a", {"a": "x"}, False),
        ("a=none", {"a": "None"}, True),
        ("a=none", {"a": None}, False),
        ("a=none", {}, False),
        ("a=false", {"a": False}, True),
        ("!a=x", {"a": "y"}, True),
        ("!a=x", {"a": "x"}, False),
    ],
)
def test_a_term(terms: str, facts: dict[str, object], applies: bool) -> None:
    found = list(applying([Rule("b", terms, "is wrong")], {**facts, "b": "given"}))
    assert bool(found) is applies
    assert [name for name, _ in applying([Rule(terms, "", "is wrong")], facts)] == ["a"] * applies


def test_all_that_apply_are_reported() -> None:
    faults = Faults()
    rules = [
        Rule("a b=1 c", "d", "is wrong", "do right"),
        Rule("a", "!d", "does not apply"),
        idle("c", "e or f=2"),
        idle("c", "d or e"),
    ]
    faults.check(rules, {"a": "x", "b": "1", "c": "y", "d": "z", "f": "1"}, {"a": "shown"})
    assert faults.problems == [
        "a: is wrong (given: 'shown'); do right",
        "b: is wrong; do right",
        "c: is wrong; do right",
    ]
    assert faults.warnings == ["option c has no effect without e or f=2"]


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        (SOURCE_RULES, {*OPTIONS, *(f"kafka.{name}" for name in PROPERTIES)}),
        (SINK_RULES, {*OPTIONS, *(f"kafka.{name}" for name in PRODUCER_PROPERTIES)}),
        (CONSUMER_RULES, set(CONFIGS)),
    ],
    ids=["source", "sink", "consumer"],
)
def test_a_rule_names_options_that_exist(rules: tuple[Rule, ...], names: set[str]) -> None:
    terms = {term for rule in rules for term in f"{rule.options} {rule.when}".split()}
    assert {term.removeprefix("!").partition("=")[0] for term in terms} <= {*names, *_FACTS}
