"""What the site makes of the documents; ``make docs`` builds all of it."""

import re
import runpy

from tests.support.documents import ROOT, documents

roles = runpy.run_path(str(ROOT / "docs/site/roles.py"))["on_page_content"]
HEADINGS = (
    '<h3 id="kshare.group.owner"></h3><h3 id="kshare.a.poll"></h3><h3 id="kshare.b.poll"></h3>'
)


def test_roles_become_links_or_code() -> None:
    for role, expected in {
        ":func:<code>owner</code>": '<a href="#kshare.group.owner"><code>owner</code></a>',
        ":func:<code>~group.owner()</code>": (
            '<a href="#kshare.group.owner"><code>group.owner()</code></a>'
        ),
        ":meth:<code>poll</code>": "<code>poll</code>",  # of which of both?
        ":mod:<code>kshare.ranges</code>": "<code>kshare.ranges</code>",
        "at 12:<code>owner</code>": "at 12:<code>owner</code>",
    }.items():
        assert roles(HEADINGS + role) == HEADINGS + expected


def test_diagrams_are_pictures() -> None:
    """Mermaid is drawn by a script from elsewhere, which the site does not load."""
    languages = {fence.language for document in documents() for fence in document.fences}
    assert "mermaid" not in languages
    assert "python" in languages


def test_every_picture_is_shown() -> None:
    texts = "".join((ROOT / document.path).read_text() for document in documents())
    for picture in (ROOT / "docs/pictures").glob("*.svg"):
        assert f"pictures/{picture.name})" in texts, picture.name


def test_no_page_is_listed_twice() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", text, re.MULTILINE)
    assert len(pages) > 30
    assert len(pages) == len(set(pages))
