"""A hook of the site: roles of Sphinx in docstrings become code, with a link where there is one."""

import re
from collections import defaultdict

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):<code>~?([\w.]+(?:\(\))?)</code>")
_ANCHOR = re.compile(r'id="((?:kshare|spark_plugin)[\w.]*)"')


def on_page_content(html: str, **_: object) -> str:
    """Replace the roles of a page. A name that the page documents once is a link to that."""
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for anchor in _ANCHOR.findall(html):
        parts = anchor.split(".")
        for first in range(len(parts)):
            homes[".".join(parts[first:])].add(anchor)

    def link(role: re.Match[str]) -> str:
        name = role[1]
        anchors = homes.get(name.removesuffix("()"), set())
        code = f"<code>{name}</code>"
        return f'<a href="#{next(iter(anchors))}">{code}</a>' if len(anchors) == 1 else code

    return _ROLE.sub(link, html)
