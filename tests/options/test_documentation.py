"""docs/options.md is what the tables say, and the README's tables say nothing else."""

import re
import subprocess
import sys
from pathlib import Path

from docs.options_page import default_of, default_of_property, options_page
from kshare.options.kafka_table import PROPERTIES, Property
from kshare.options.model import SOURCE_COLUMNS
from kshare.options.producer_table import PRODUCER_PROPERTIES
from kshare.options.sink import parse_sink_options
from kshare.options.table import OPTIONS
from kshare.query.produce.config import producer_config, transactional_config

ROOT = Path(__file__).parents[2]
HEAD = r"^\| *option *\| *default *\|.*\n\|[-| ]+\|\n"
OPTION_TABLE = re.compile(rf"{HEAD}((?:\|.*\n)+)", re.MULTILINE)


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    assert page == options_page(), "run: python docs/options_page.py > docs/options.md"


def test_the_command_prints_the_page() -> None:
    command = [sys.executable, str(ROOT / "docs/options_page.py")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == (
        options_page()
    )


def test_every_name_is_on_the_page() -> None:
    page = options_page()
    for name in (*OPTIONS, *PROPERTIES, *PRODUCER_PROPERTIES, *SOURCE_COLUMNS):
        assert f"`{name}`" in page, name


def test_defaults_are_those_of_the_model() -> None:
    shown = {name: default_of(option) for name, option in OPTIONS.items()}
    assert shown["failOnDataLoss"] == "`true`"
    assert shown["maxRangesInCheckpoint"] == "`10000`"
    assert shown["fetchOffset.numRetries"] == "`3`"
    assert shown["fetchOffset.retryIntervalMs"] == "`1000`"
    assert shown["parkedKeys"] == "`[]`"
    assert shown["minPartitions"] == "none"
    assert shown["max.bytes.key.range.results"] == "`209715200` (200 MiB)"
    assert default_of_property(PROPERTIES["client.rack"]) == ""
    assert default_of_property(PROPERTIES["client.id"]) == "`kshare`"
    assert default_of_property(PROPERTIES["ssl.keystore.type"]) == "`JKS`"


def test_defaults_of_the_producer_are_those_of_a_sink() -> None:
    given = {"kafka.bootstrap.servers": "broker:9092", "topic": "t"}
    once = parse_sink_options({**given, "exactlyOnce": "true"}, streaming=True).options
    plain_ones = parse_sink_options({**given, "kafka.acks": "1"}, streaming=True).options
    for found in (transactional_config(once, "i"), producer_config(plain_ones)):
        buffered = found.pop("queue.buffering.max.kbytes")
        shown = {name: _shown_number(entry) for name, entry in PRODUCER_PROPERTIES.items()}
        assert shown["buffer.memory"] == buffered << 10
        for name, entry in PRODUCER_PROPERTIES.items():
            into = entry.librdkafka[0] if entry.librdkafka else name
            assert found.get(into) in {None, shown[name]} or name in {"acks", "enable.idempotence"}
        assert {"linger.ms", "message.max.bytes", "message.timeout.ms"} <= found.keys()
    assert found["max.in.flight.requests.per.connection"] == 5


def _shown_number(entry: Property) -> int | None:
    shown = re.match(r"`(\d+)`", default_of_property(entry))
    return int(shown[1]) if shown else None


def test_what_the_readme_says_of_options_is_so() -> None:
    """Any options may be shown; their names and defaults are those of the tables."""
    rows = [
        [cell.strip() for cell in row.strip("|").split(" | ")]
        for table in OPTION_TABLE.findall((ROOT / "README.md").read_text())
        for row in table.splitlines()
    ]
    assert len(rows) >= 5
    for names, default, *_ in rows:
        listed = re.findall(r"`([^`]+)`", names)
        assert listed
        for name in listed:
            assert is_known(name), name
        if len(listed) == 1 and "required" not in default:
            assert plain(default) in plain(default_in_tables(listed[0])), listed[0]


def is_known(name: str) -> bool:
    if not name.startswith("kafka."):
        return name in OPTIONS
    prefix = name.removeprefix("kafka.").removesuffix("*")
    return any(known == prefix or known.startswith(prefix) for known in PROPERTIES)


def default_in_tables(name: str) -> str:
    if not name.startswith("kafka."):
        return default_of(OPTIONS[name])
    return default_of_property(PROPERTIES[name.removeprefix("kafka.")]) or "none"


def plain(text: str) -> str:
    return text.replace("`", "").replace(",", "").strip().lower()
