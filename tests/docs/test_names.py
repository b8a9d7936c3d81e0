"""What the documents name exists: links, files, tests, options, commands and make targets."""

import argparse
import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kshare import cli
from kshare.errors import OptionsError
from kshare.group.config.table import CONFIGS as CONSUMER_CONFIGS
from kshare.options import parse_options
from kshare.options.row_names import DOTTED_NAMES
from kshare.options.sink import parse_sink_options
from tests.support.documents import ROOT, Document, documents, names

NAMES = names()
USER_PAGES = [
    name
    for name in NAMES
    if name not in {"CHANGELOG.md", "DESIGN.md"} and not name.startswith("docs/design/")
]
SERVERS = {"kafka.bootstrap.servers": "broker:9092"}
OF_BROKERS = {
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
}
FOLDERS = ("kshare", "spark_plugin", "tests", "integration", "bench", "docs", "docker", "examples")


def page(name: str) -> Document:
    return next(document for document in documents() if document.path == name)


# -- links and files -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    anchors = {document.path: document.anchors for document in documents()}
    for link in page(name).links:
        if link.startswith(("https://", "http://")):
            continue
        target, _, anchor = link.partition("#")
        file = (ROOT / name).parent / target if target else ROOT / name
        assert file.exists(), f"{name}: {link}"
        path = str(file.resolve().relative_to(ROOT))
        assert not anchor or anchor in anchors[path], f"{name}: {link}"


@pytest.mark.parametrize("name", NAMES)
def test_files_exist(name: str) -> None:
    for code in page(name).codes:
        path = code.partition("::")[0]
        is_path = re.fullmatch(r"[\w./-]+", path) and path.split("/")[0] in FOLDERS
        if is_path and "/" in path:
            assert (ROOT / path).exists(), f"{name}: {code}"


def test_each_named_test_exists() -> None:
    named = [code for document in documents() for code in document.codes if "::" in code]
    assert len(named) > 40  # the tables of docs/design/tested-situations.md
    for code in named:
        path, _, test = code.partition("::")
        assert test in _tests(path), code


@cache
def _tests(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_page_is_in_the_index_and_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for name in NAMES:
        if name.startswith("docs/") and name != "docs/README.md":
            short = name.removeprefix("docs/")
            assert short in page("docs/README.md").links, short
            assert f": {short}\n" in navigation, short


# -- options ---------------------------------------------------------------------------------------


def problem(name: str, value: str = "1") -> str:
    """Why a name is no option, of the source or of the sink; empty if it is one."""
    try:
        parsed = parse_options({**SERVERS, "subscribe": "t", name: value}, streaming=True)
        of_sink = parse_sink_options({**SERVERS, "topic": "t", name: value}, streaming=True)
    except OptionsError:
        return ""
    texts = [
        next((warning for warning in warnings if "known" in warning), "")
        for warnings in (parsed.warnings, of_sink.warnings)
    ]
    return texts[0] if all(texts) else ""


def test_a_misspelt_option_is_found() -> None:
    assert "minPartitions" in problem("minPartition")
    assert problem("kafka.fetch.min.byte")
    assert not problem("minPartitions")
    assert not problem("exactlyOnce")
    assert not problem("kafka.delivery.timeout.ms")


@pytest.mark.parametrize("name", USER_PAGES)
def test_options_in_tables_exist(name: str) -> None:
    for option in page(name).options:
        text, _, value = option.partition("=")
        if "*" not in text:
            assert not problem(text, value or "1"), f"{name}: {option}"


def assignments(document: Document) -> Iterator[tuple[str, str]]:
    for code in document.codes:
        match = re.fullmatch(r"([A-Za-z][\w.]*)=([\w.,-]+)", code)
        if match:
            yield match[1], match[2]


@pytest.mark.parametrize("name", USER_PAGES)
def test_options_with_values_are_right(name: str) -> None:
    for given, value in assignments(page(name)):
        option = DOTTED_NAMES.get(given, given)
        if option.startswith("spark.") or option in OF_BROKERS or option in PARAMETERS:
            continue
        if option.startswith(("KSHARE_", "NUMBA_")):
            assert option in environment(), f"{name}: {option}"
            continue
        if option in CONSUMER_CONFIGS:
            continue
        known = option if not problem(option) else f"kafka.{option}"
        assert not problem(known), f"{name}: {option}={value}"
        assert not value_fault(known, value), f"{name}: {option}={value}"


@cache
def environment() -> set[str]:
    """The environment variables that the code reads."""
    files = [f for folder in ("kshare", "spark_plugin") for f in (ROOT / folder).rglob("*")]
    texts = [f.read_text() for f in files if f.suffix == ".py" or f.name == "kshare-python"]
    return {name for text in texts for name in re.findall(r"(?:KSHARE|NUMBA)_[A-Z_]+", text)}


PARAMETERS = {"other_hash_seeds", "settles", "spread_max", "together"}
"""Parameters of functions in docs/design/kip-924.md."""


OF_ROWS = ("value", "badRecords", "columns", "schemaRegistry.")
ROWS = {"valueFormat": "avro", "schemaRegistry.url": "http://registry:8081"}


def value_fault(name: str, value: str) -> str:
    """What is wrong with a value; empty if the source or, for its options, the sink takes it."""
    group = {"kafka.group.id": "g"} if name in {"commitOffsets", "startingOffsets"} else {}
    rows = ROWS if name.startswith(OF_ROWS) else {}
    base = {**SERVERS, "subscribe": "t", **group, **rows}
    try:
        parsed = parse_options({**base, name: value}, streaming=True)
    except OptionsError as error:
        fault = str(error)
    else:
        fault = next((text for text in parsed.warnings if "option of the sink" in text), "")
    of_sink = ("option of the sink", "is a sink's")
    if fault and (name.startswith("kafka.") or any(text in fault for text in of_sink)):
        try:
            parse_sink_options({**SERVERS, "topic": "t", **rows, name: value}, streaming=True)
        except OptionsError as error:
            return str(error)
        return ""
    return fault


def test_a_wrong_value_is_found() -> None:
    assert value_fault("rangeAssignor", "adaptiv")
    assert value_fault("exactlyOnce", "yes please")
    assert not value_fault("targetTaskDuration", "5s")
    assert not value_fault("exactlyOnce", "true")


# -- commands --------------------------------------------------------------------------------------


NOT_COMMANDS = {"kshare does not support Update mode"}


def commands(document: Document) -> Iterator[str]:
    """The command lines of a document."""
    for fence in document.fences:
        if fence.language in {"", "sh"}:
            yield from (line.removeprefix("$ ") for line in fence.text.splitlines())
    yield from document.codes


@pytest.mark.parametrize("name", USER_PAGES)
def test_commands_of_kshare_have_their_arguments(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = cli._parser()
    known = next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for command in commands(page(name)):
        program, *arguments = _words(command)
        if program != "kshare" or not arguments or command in NOT_COMMANDS:
            continue
        assert arguments[0] in known, f"{name}: {command}"
        if len(arguments) > 1:
            try:
                parser.parse_args(arguments)
            except SystemExit:
                pytest.fail(f"{name}: {command}\n{capsys.readouterr().err}")


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=True) or [""]
    except ValueError:  # no command
        return [""]


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [
        (document.path, words[1])
        for document in documents()
        for command in commands(document)
        if (words := _words(command))[0] == "make" and len(words) > 1
    ]
    assert {target for _, target in named} >= {"test", "demo", "docs", "bench"}
    for place, target in named:
        assert target in targets, f"{place}: make {target}"


@pytest.mark.parametrize("name", NAMES)
def test_modules_that_are_run_exist(name: str) -> None:
    for command in commands(page(name)):
        match = re.search(r"\bpython -m ([\w.]+)", command)
        if match:
            assert importlib.util.find_spec(match[1]) is not None, f"{name}: {command}"


# -- the two texts that users read first -----------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 1_050


def test_every_extra_and_every_script_exists() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for document in documents():
        text = (ROOT / document.path).read_text()
        for extra in re.findall(r"pip install '(?:kshare|\.)\[(\w+)\]'", text):
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"{document.path}: {extra}"
    assert Path(ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")


def test_the_table_of_tests_is_on_its_own_page() -> None:
    """A guarantee is for users: a row for each test goes to docs/design/tested-situations.md."""
    assert not [code for code in page("docs/guarantees.md").codes if "::" in code]


def test_no_situation_is_told_twice() -> None:
    lines = (ROOT / "docs/design/tested-situations.md").read_text().splitlines()
    rows = [line for line in lines if "::" in line]
    assert len(rows) > 100
    assert len(rows) == len(set(rows))
