"""Every file that parses what others may have written is listed in docs/design/decoders.md."""

import ast
import re

from tests.support.documents import ROOT

PAGE = (ROOT / "docs/design/decoders.md").read_text()
LISTED = set(re.findall(r"^\| `([\w/]+\.py)` \|", PAGE, re.MULTILINE))
HOME = "kshare/core/bounded_json.py"
PARSERS = {
    ("json", "load"),
    ("json", "loads"),
    ("json", "JSONDecoder"),
    ("marshal", "load"),
    ("marshal", "loads"),
    ("pickle", "load"),
    ("pickle", "loads"),
    ("pickle", "Unpickler"),
    ("struct", "iter_unpack"),
    ("struct", "unpack"),
    ("struct", "unpack_from"),
}
BOUNDED = {"inflated", "read_json", "read_object", "read_without"}


def is_decoder(source: str) -> bool:
    """True if a module parses bytes or texts: by the standard library, or within bounds."""
    modules = {module for module, _ in PARSERS}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in PARSERS:
                return True
            case ast.ImportFrom(module="kshare.core.bounded_json", names=names):
                if BOUNDED & {each.name for each in names}:
                    return True
            case ast.ImportFrom(module=module) if module in modules - {"struct"}:
                return True  # so that no parser has another name
            case ast.Attribute(value=ast.Name(id=name), attr="unpack_from") if name.isupper():
                return True  # a compiled struct
    return False


def decoders() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for package in ("kshare", "spark_plugin")
        for path in (ROOT / package).rglob("*.py")
        if is_decoder(path.read_text())
    }


def test_every_decoder_is_listed_with_its_bounds() -> None:
    assert decoders() - {HOME} <= LISTED
    assert [name for name in LISTED if not (ROOT / name).is_file()] == []


def test_what_others_write_has_bounds_costs_and_a_way_out() -> None:
    table = PAGE[PAGE.index("| decoder |") : PAGE.index("These read what")]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 6, row
        assert all(cells), row


def test_a_decoder_that_is_not_listed_is_found() -> None:
    for source in (
        "import json\njson.loads(x)",
        "from json import loads",
        "import pickle\npickle.loads(x)",
        "from kshare.core.bounded_json import read_json",
        "import struct\nA = struct.Struct('>i')\nA.unpack_from(b'')",
    ):
        assert is_decoder(source), source
    assert not is_decoder("import json\njson.dumps(x)\nimport pickle\npickle.dumps(x)")


def test_only_its_home_parses_what_a_topic_or_a_member_holds() -> None:
    """The library's parts that read topics have no parser of their own."""
    for package in ("cluster", "group", "produce", "processing", "core"):
        for path in (ROOT / "kshare" / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if name in {HOME, "kshare/group/message.py", "kshare/query/produce/transactions.py"}:
                continue
            assert "json.loads(" not in path.read_text(), name
            assert "pickle.loads(" not in path.read_text(), name
