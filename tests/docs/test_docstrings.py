"""Docstrings are plain English: subject first, and none of the phrases that nobody says."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPENING = re.compile(r"(What|Whether|How|Where|Which|Who|Why)\b")
PHRASES = re.compile(r"\btold\b|\bis no (\w+ )?consumer\b|\bso many\b|\blet go of\b", re.IGNORECASE)
RAISES = re.compile(r"Raises: .*\b[A-Z]\w*(Error|Exception): [a-z]")


@cache
def docstrings() -> dict[str, str]:
    """The texts of modules, classes, functions and attributes, by file and line."""
    found = {}
    for package in ("kshare", "spark_plugin"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in statements(ast.parse(path.read_text())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    for each in node.body:
                        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                            place = f"{path.relative_to(ROOT)}:{each.lineno}"
                            found[place] = " ".join(str(each.value.value).split())
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """A node and the statements within it; not their expressions, which are most of a tree."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from statements(child)


def test_few_docstrings_open_with_a_question_word() -> None:
    """It is "The address of a broker", not "Where a broker is"; "True if", not "Whether"."""
    assert len(docstrings()) > 3_000
    opening = [place for place, text in docstrings().items() if OPENING.match(text)]
    assert len(opening) <= 300, opening


def test_phrases_that_are_not_used() -> None:
    """Write: logged once; is not a consumer; N; close."""
    assert not {place: text for place, text in docstrings().items() if PHRASES.search(text)}


def test_what_is_raised_is_said_in_sentences() -> None:
    """It is "OptionsError: They are wrong.", not "OptionsError: they are wrong."."""
    assert not {place: text for place, text in docstrings().items() if RAISES.search(text)}
