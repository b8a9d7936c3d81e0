"""The Python of the documents: it compiles, its options are right, and what can run here runs.

An example runs if it defines each name that it uses, in this block or in one before it on the page;
the other names must be those of :data:`STORY`. Examples that need Spark are run by
``integration/test_docs.py``, those that cannot run alone are compiled.
"""

import ast
import builtins
from collections.abc import Iterator

import pytest

from kshare.options import parse_options
from kshare.testing import FakeCluster
from tests.docs.test_names import SERVERS, problem, value_fault
from tests.support.documents import Document, Fence, documents

STORY = {"counts", "df", "frame", "listener", "options", "orders", "query", "spark"}
"""Names that the text around an example introduces."""

OF_SPARK = {"checkpointLocation"}
PAGES = [
    document.path
    for document in documents()
    if any(fence.language == "python" for fence in document.fences)
]


def examples(name: str) -> list[Fence]:
    document = next(document for document in documents() if document.path == name)
    return [fence for fence in document.fences if fence.language == "python"]


def source_of(example: Fence) -> str:
    """The code; a chain of options gets what it is called on."""
    text = example.text
    return f"spark.readStream{text}" if text.startswith(".") else text


def unknown_names(tree: ast.Module, known: set[str]) -> set[str]:
    """Names that a block uses and that neither it nor a block before it defines."""
    nodes = list(ast.walk(tree))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    stored |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    stored |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    stored |= {
        (alias.asname or alias.name).split(".")[0]
        for n in nodes
        if isinstance(n, ast.Import | ast.ImportFrom)
        for alias in n.names
    }
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - stored - known - set(dir(builtins))


@pytest.mark.parametrize("name", PAGES)
def test_examples_run(name: str) -> None:
    scope: dict[str, object] = {"__name__": "example"}
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [(b"key-%d" % (i % 7), b"v") for i in range(1_000)])
        for example in examples(name):
            text = source_of(example).replace("localhost:9092", cluster.bootstrap_servers)
            tree = ast.parse(text, f"{name}:{example.line}")
            missing = unknown_names(tree, set(scope))
            assert missing <= STORY, f"{name}:{example.line}: {missing}"
            if not missing and "spark" not in text:
                exec(compile(tree, f"{name}:{example.line}", "exec"), scope)


def test_some_examples_ran() -> None:
    run = [
        (name, example.line)
        for name in PAGES
        for example in examples(name)
        if not unknown_names(ast.parse(source_of(example)), set())
        and "spark" not in source_of(example)
    ]
    assert len(run) >= 5


def options_in(document: Document) -> Iterator[tuple[int, str, str]]:
    """Line, name and value of each ``.option(name, value)``."""
    for example in examples(document.path):
        for node in ast.walk(ast.parse(source_of(example))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == "option" and len(node.args) == 2:
                name, value = (ast.literal_eval(argument) for argument in node.args)
                yield example.line, name, str(value)


@pytest.mark.parametrize("name", PAGES)
def test_options_of_examples_are_right(name: str) -> None:
    document = next(document for document in documents() if document.path == name)
    for line, option, value in options_in(document):
        if option in OF_SPARK:
            continue
        assert not problem(option, value), f"{name}:{line}: {option}"
        if option not in {"subscribe", "topic"}:
            assert not value_fault(option, value), f"{name}:{line}: {option}={value}"


def test_the_options_of_the_first_example_go_together() -> None:
    readme = next(document for document in documents() if document.path == "README.md")
    first = examples("README.md")[0].line
    given = {
        name: value
        for line, name, value in options_in(readme)
        if line == first and name not in OF_SPARK
    }
    assert SERVERS.keys() <= given.keys()
    assert parse_options(given, streaming=True).warnings == ()
