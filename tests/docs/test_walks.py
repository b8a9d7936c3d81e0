"""docs/design/walks.md has the table that ``python -m bench.walks`` prints."""

import threading

from bench.walks import WALKS, Trace, Walk, table
from kshare.core.offsets import union
from tests.support.documents import ROOT


def test_the_page_has_a_line_for_each_walk() -> None:
    text = (ROOT / "docs/design/walks.md").read_text()
    head, rule, *_ = table([]).splitlines()
    rows = text[text.index(f"{head}\n{rule}\n") :].partition("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(WALKS)


def test_a_trace_notes_the_functions_of_the_product_by_thread() -> None:
    trace = Trace()
    trace.start()
    try:
        with trace.on() as noted:
            union([(1, 2), (3, 4)])
            thread = threading.Thread(target=union, args=([],), name="kshare member-1")
            thread.start()
            thread.join()
        union([(1, 2)])
    finally:
        trace.stop()
    of_union = ("kshare/core/offsets.py", "union")
    assert of_union in noted["caller"]
    assert noted["session"] == {of_union}


def test_only_what_each_walk_has_passed_counts() -> None:
    one, other = ("a.py", "f"), ("b.py", "g")
    walk = Walk("a walk", [{"caller": {one, other}, "session": {other}}, {"caller": {one}}])
    assert walk.common() == {"caller": {one}}
    assert table([walk]).splitlines()[-1] == "| a walk | 1 | 1 | 1 | caller 1 (1) |"
