"""Print ``docs/options.md``, made of the tables of options: ``python docs/options_page.py``."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from kshare.options import kafka_table, producer_table, registry_table, row_formats, table
from kshare.options.kafka_table import Property
from kshare.options.kinds import Kind
from kshare.options.model import KafkaConfig, SourceOptions
from kshare.options.table import Option

__all__ = ["default_of", "default_of_property", "options_page"]

_INTRODUCTION: Final = """\
# Options

This page is made by `python docs/options_page.py` from the tables that kshare itself parses
options by. What Spark's own options mean here, and where kshare differs, is in
[kafka-options.md](kafka-options.md).

Names are case-insensitive. All faults are reported together, before anything is contacted. An
unknown name gets a warning with the nearest known one. *Query* says where an option counts: in a
batch query, a stream, or a sink (`df.write` and `df.writeStream`). Batch queries ignore a stream's
options, with a warning.
"""
_PROPERTIES: Final = """\
Names are those of Kafka's Java client. A sink takes those of the producer, a source those of the
consumer. Times are in milliseconds. An empty default is Kafka's own.
"""
_REGISTRY: Final = """\
How the schema registry of typed rows is reached. Names are those of confluent-kafka's client
(`pip install kshare[registry]` brings what it needs). A secret is never shown.
`value.json.NAME` and `key.json.NAME` take these options of Spark's `from_json`:
"""
_NO_EFFECT: Final = """\
These properties are accepted with a warning: they change neither which records are read or written,
nor as whom, nor whom is trusted.
"""
_LIBRDKAFKA: Final = """\
kshare takes Java's names. Those of librdkafka get a warning that says which:
"""


def options_page() -> str:
    """Return the page as Markdown."""
    lines = [_INTRODUCTION]
    for title, options in table.SECTIONS.items():
        lines += [f"## {title}", "", *_table("option query values default meaning", options)]
    json = _listed(row_formats.JSON_OPTIONS)
    lines += ["## The schema registry (`schemaRegistry.*`), and JSON", "", _REGISTRY, json, ""]
    lines += _head("property values secret meaning")
    for entry in registry_table.REGISTRY_PROPERTIES.values():
        secret = "yes" if entry.secret else ""
        lines.append(_row(f"`{entry.name}`", entry.kind.values, secret, entry.doc))
    lines.append("")
    lines += ["## Properties of Kafka's client (`kafka.*`)", "", _PROPERTIES]
    lines += _properties(kafka_table.PROPERTIES.values())
    lines += ["### Only in a sink", "", *_properties(producer_table.PRODUCER_PROPERTIES.values())]
    no_effect = {*kafka_table.NO_EFFECT, *kafka_table.CONSUMER_NO_EFFECT}
    no_effect |= {*producer_table.PRODUCER_NO_EFFECT}
    lines += ["### Without effect", "", _NO_EFFECT, _listed(no_effect), ""]
    refused = {
        **kafka_table.NOT_BUILT,
        **kafka_table.CONSUMER_REFUSED,
        **producer_table.PRODUCER_REFUSED,
    }
    lines += ["### Refused", "", *_pairs("property", "why", refused)]
    librdkafka = producer_table.PRODUCER_LIBRDKAFKA_NAMES
    lines += ["### Names of librdkafka", "", _LIBRDKAFKA, *_pairs("name", "instead", librdkafka)]
    return "\n".join(lines).rstrip() + "\n"


def default_of(option: Option) -> str:
    """Return the default of an option as Markdown."""
    if option.default or option.field is None:
        return option.default or "none"
    if option.unset is not None:
        return _shown(option.unset)
    if option.field.startswith("kafka."):
        return _shown(_field_default(KafkaConfig, option.field.removeprefix("kafka.")))
    return _shown(_field_default(SourceOptions, option.field))


def default_of_property(entry: Property) -> str:
    """Return the default of a property as Markdown; empty: it has none, or Kafka's own."""
    if entry.default or entry.field is None:
        return entry.default
    value = _field_default(KafkaConfig, entry.field)
    return "" if value is None else _shown(value)


def _field_default(owner: Any, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(owner) if field.name == name)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"`{value}` ({value >> 20} MiB)"
    return "`[]`" if value == () else f"`{value}`"


def _table(heads: str, options: Iterable[Option]) -> Iterator[str]:
    yield from _head(heads)
    for option in options:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        queries = "source" if option.queries == ("batch", "stream") else ", ".join(option.queries)
        queries = "all" if len(option.queries) == 3 else queries
        yield _row(names, queries, _values(option.kind), default_of(option), option.doc)
    yield ""


def _properties(properties: Iterable[Property]) -> Iterator[str]:
    yield from _head("property client values default remarks")
    for entry in properties:
        default = default_of_property(entry)
        yield _row(f"`{entry.name}`", entry.client, _values(entry.kind), default, entry.doc)
    yield ""


def _values(kind: Kind | None) -> str:
    return "" if kind is None else kind.values


def _head(heads: str) -> Iterator[str]:
    yield _row(*heads.split())
    yield "|" + "---|" * len(heads.split())


def _pairs(first: str, second: str, rows: dict[str, str]) -> Iterator[str]:
    yield _row(first, second)
    yield "|---|---|"
    for name in sorted(rows):
        yield _row(f"`{name}`", rows[name])
    yield ""


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    sys.stdout.write(options_page())
