"""Every public error is in kshare.errors: defined, in ``__all__``, in the tree of the docstring."""

import ast
import builtins
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kshare import errors

ROOT = Path(__file__).parents[1]
PUBLIC = {name for name in errors.__all__ if name != "Location"}
API = (ROOT / "docs/api.md").read_text()


def test_the_tree_shows_every_error_below_its_base() -> None:
    assert errors.__doc__ is not None
    rows = re.findall(r"^    ([│├└─ ]*)(\w+)", errors.__doc__, re.MULTILINE)
    shown, path = {}, [""]
    for branch, name in rows:
        depth = len(branch) // 4
        shown[name] = path[depth]
        path[depth + 1 :] = [name]
    public = {name: getattr(errors, name) for name in PUBLIC}
    bases = {
        name: next(b.__name__ for b in each.__mro__[1:] if not b.__name__.startswith("_"))
        for name, each in public.items()
    }
    assert shown == {**bases, "KshareError": "", "RuntimeError": ""}


def test_all_errors_of_the_library_are_defined_in_one_file() -> None:
    bases = {"KshareError", *PUBLIC} - {"ConsumerClosedError"}
    for folder in ("kshare", "spark_plugin"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and path.name != "errors.py":
                    of = {base.id for base in node.bases if isinstance(base, ast.Name)}
                    assert not of & bases, f"{path}: {node.name}"
    defined = {name for name, each in vars(errors).items() if inspect.isclass(each)}
    assert {name for name in defined if name.endswith(("Error", "Exception"))} - {
        "_PlacedError"
    } == PUBLIC


def functions() -> Iterator[tuple[str, Any]]:
    """The public functions, and the methods of public classes, that docs/api.md lists."""
    members = r"^::: ([\w.]+)\n(?:.*\n +members: \[(.*)\])?"
    for module, names in re.findall(members, API, re.MULTILINE):
        home = _object(module)
        for name in names.split(", ") if names else getattr(home, "__all__", ()):
            each = getattr(home, name)
            yield name, each
            if inspect.isclass(each):
                methods = [(n, m) for n, m in vars(each).items() if n[0] != "_" or n == "__init__"]
                yield from ((f"{name}.{n}", m) for n, m in methods)


def _object(path: str) -> Any:
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


def raised(docstring: str) -> set[str]:
    """The names in the section ``Raises`` of a docstring."""
    _, _, section = inspect.cleandoc(docstring).partition("Raises:\n")
    lines = section.split("\n\n")[0]
    return set(re.findall(r"\w+", " ".join(re.findall(r"^    (\w[\w, ]*):", lines, re.MULTILINE))))


NAMED = {name: names for name, each in functions() if (names := raised(each.__doc__ or ""))}


def test_public_functions_name_what_they_raise() -> None:
    assert len(NAMED) > 20
    assert NAMED["read_slice"] >= {"OptionsError", "DataLossError"}


@pytest.mark.parametrize("name", NAMED)
def test_what_public_functions_raise_is_public(name: str) -> None:
    for error in NAMED[name]:
        # kshare.testing drives confluent-kafka itself, and lets its errors through.
        assert error in PUBLIC or hasattr(builtins, error) or error == "KafkaException"
