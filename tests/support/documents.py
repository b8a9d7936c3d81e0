"""The documents of the repository, parsed: links, code, tables and headings."""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "DESIGN.md", "CHANGELOG.md")
"""The documents outside docs/."""


@dataclass(frozen=True)
class Fence:
    """A block of code.

    Attributes:
        language: What follows the opening fence.
        text: The code.
        line: The number of its first line in the document.
    """

    language: str
    text: str
    line: int


@dataclass
class Document:
    """A document.

    Attributes:
        path: Its path below the repository.
        fences: Its blocks of code.
        links: The targets of its links and pictures.
        codes: Its inline code.
        options: The inline code in the first column of tables with the header "option".
        anchors: The anchors of its headings, as GitHub names them.
    """

    path: str
    fences: list[Fence] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


def names() -> tuple[str, ...]:
    """The paths of all documents: those of the repository's root, and those of docs/."""
    pages = (str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))
    return (*PAGES, *pages)


@cache
def documents() -> tuple[Document, ...]:
    """All documents, in the order of :func:`names`; parsing takes too long for an import."""
    return tuple(_parse(page) for page in names())


def _parse(page: str) -> Document:
    document = Document(page)
    tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text())
    column, header = -1, ""
    for number, token in enumerate(tokens):
        if token.type in {"fence", "code_block"}:
            line = (token.map or [0])[0] + 2
            document.fences.append(Fence(token.info.strip(), token.content, line))
        elif token.type == "heading_open":
            document.anchors.add(_anchor(_text(tokens[number + 1])))
        elif token.type == "tr_open":
            column = -1
        elif token.type in {"th_open", "td_open"}:
            column += 1
            if column == 0 and token.type == "th_open":
                header = _text(tokens[number + 1])
        elif token.type == "inline":
            codes = [child.content for child in token.children or () if child.type == "code_inline"]
            document.codes += codes
            document.links += _links(token)
            if column == 0 and header == "option":
                document.options += codes
        elif token.type == "table_close":
            column, header = -1, ""
    return document


def _text(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def _links(inline: Token) -> list[str]:
    return [
        str(target)
        for child in inline.children or ()
        if (target := child.attrs.get("href", child.attrs.get("src"))) is not None
    ]


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
