"""The Python of the documents: it compiles, its options are right, and what can run here runs.

An example runs if it defines each name that it uses, in this block or in one before it on the page;
the other names must be those of :data:`STORY`. Examples that need Spark or a library of data frames
are run by ``integration/test_docs.py``, those that cannot run alone are compiled.
"""

import ast
import builtins
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest

from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.options import parse_options
from kshare.options.sink import parse_sink_options
from kshare.options.table import OPTIONS
from kshare.testing import FakeCluster
from tests.docs.test_names import SERVERS, problem
from tests.support.documents import ROOT, Fence, documents, names
from tests.support.groups import T0, fetch_as_brokers_do

STORY = {"counts", "df", "frame", "listener", "options", "orders", "query", "spark"}
"""Names that the text around an example introduces."""

FRAMES = {"duckdb", "pandas", "polars"}
"""Libraries that readers do without, so the tests' environment has none of them."""

OF_SPARK = {"checkpointLocation"}
PAGES = [name for name in names() if "```python\n" in (ROOT / name).read_text()]


def examples(name: str) -> list[Fence]:
    document = next(document for document in documents() if document.path == name)
    return [fence for fence in document.fences if fence.language == "python"]


def source_of(example: Fence) -> str:
    """The code; a chain of options gets what it is called on."""
    text = example.text
    return f"(spark.readStream{text})" if text.startswith(".") else text


def defined_names(tree: ast.Module) -> set[str]:
    """Names that a block defines somewhere."""
    nodes = list(ast.walk(tree))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    stored |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    stored |= {
        n.name
        for n in nodes
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    return stored | {
        (alias.asname or alias.name).split(".")[0]
        for n in nodes
        if isinstance(n, ast.Import | ast.ImportFrom)
        for alias in n.names
    }


def missing_names(tree: ast.Module) -> set[str]:
    """Names that a block uses and does not define."""
    nodes = ast.walk(tree)
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - defined_names(tree) - set(dir(builtins))


def needs_frames(tree: ast.Module) -> bool:
    """Whether a block imports what the tests' environment has not: see :data:`FRAMES`."""
    named = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    return bool(named & FRAMES)


class _EnoughError(Exception):
    """Raised by an example's ``print``, to leave one that goes on for ever."""


def printer() -> Callable[..., None]:
    """A ``print`` that an example may call a hundred times."""
    calls = count(1)

    def print_quietly(*_: object) -> None:
        if next(calls) == 100:
            raise _EnoughError

    return print_quietly


def test_no_page_is_left_out() -> None:
    """Pages are found without parsing them, which each worker would do for itself."""
    languages = {page.path: {fence.language for fence in page.fences} for page in documents()}
    assert [name for name in names() if "python" in languages[name]] == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_as_brokers_do(monkeypatch, T0)
    scope: dict[str, object] = {"__name__": "example"}
    defined: set[str] = set()
    with FakeCluster(topics={"orders": 1, INDIVIDUAL_COMMITS_TOPIC: 1}) as cluster:
        cluster.produce("orders", [(b"key-%d" % (i % 7), b"v") for i in range(1_000)])
        for example in examples(name):
            text = source_of(example).replace("localhost:9092", cluster.bootstrap_servers)
            tree = ast.parse(text, f"{name}:{example.line}")
            missing = missing_names(tree)
            assert missing <= STORY | defined, f"{name}:{example.line}: {missing}"
            defined |= defined_names(tree)
            if missing <= scope.keys() and "spark" not in text and not needs_frames(tree):
                scope["print"] = printer()
                with suppress(_EnoughError):
                    exec(compile(tree, f"{name}:{example.line}", "exec"), scope)


def test_some_examples_ran() -> None:
    run = [
        (name, example.line)
        for name in PAGES
        for example in examples(name)
        if not missing_names(ast.parse(source_of(example))) and "spark" not in source_of(example)
    ]
    assert len(run) >= 5


def options_of(example: Fence) -> dict[str, str]:
    """What a block gives with ``.option(name, value)``, but for Spark's own."""
    calls = [
        node.args
        for node in ast.walk(ast.parse(source_of(example)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "option"
    ]
    given = {ast.literal_eval(name): str(ast.literal_eval(value)) for name, value in calls}
    return {name: value for name, value in given.items() if name not in OF_SPARK}


@pytest.mark.parametrize("name", PAGES)
def test_options_of_examples_go_together(name: str) -> None:
    for example in examples(name):
        given = options_of(example)
        for option, value in given.items():
            assert not problem(option, value), f"{name}:{example.line}: {option}"
        if any(name in OPTIONS and OPTIONS[name].queries == ("sink",) for name in given):
            parsed = parse_sink_options({**SERVERS, **given}, streaming=True)
            assert parsed.warnings == (), f"{name}:{example.line}"
        else:
            source = parse_options({**SERVERS, "subscribe": "t", **given}, streaming=True)
            assert source.warnings == (), f"{name}:{example.line}"


def test_some_examples_have_options() -> None:
    assert sum(bool(options_of(example)) for name in PAGES for example in examples(name)) >= 5
