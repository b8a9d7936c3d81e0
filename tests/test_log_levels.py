"""Nothing that keeps a consumer, a query or a sink from its work is logged below WARNING.

What is below, and reads like a fault, is listed here with the reason. A line that is new and reads
so is raised to WARNING, given to a watch (:mod:`kshare.core.waits`), or listed.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import kshare
import spark_plugin

ROOTS = [Path(folder) for package in (kshare, spark_plugin) for folder in package.__path__]
LOW = {"info", "debug"}
FAULT = re.compile(
    r"%s: %s|"
    r"\b(error|fail\w*|refus\w*|denied|"
    r"wait\w*|cannot|no|not|passed over|again|retry\w*|dropped|gone)\b"
)
HARMLESS = {
    ("kafka/protocol/retry.py", "%s%s, retrying after: %s"): "a watch says it once it lasts",
    ("kafka/client.py", "the broker takes no new login yet: %s"): "it does after a second",
    (
        "query/planner/end_offsets.py",
        "%s: no record of a parked key in [%d,%d)",
    ): "that is good news",
    ("query/planner/open_batches.py", "ends of batch %s are left in %s: %s"): "nobody reads them",
    ("group/delivery/looks.py", "cannot look where the logs of paused partitions end: %s"): (
        "only metrics use it"
    ),
    ("group/consumer/topic_lookup.py", "cannot see whether %s exist: %s"): "the session says it",
    ("group/session/log_follower.py", "cannot look at the log of group %s: %s"): (
        "who follows it says it"
    ),
    ("query/feedback/messages.py", "the planner at %s:%d takes no reports: %s"): (
        "the planner finds the ends itself"
    ),
    ("query/feedback/messages.py", "the planner takes no more reports: %s"): "the same",
    ("query/feedback/server.py", "a feedback connection was dropped: %s"): "the first is a warning",
    ("monitor/web_server.py", "a connection has gone by itself: %s"): "the client has left",
    ("monitor/retention.py", "cannot tell whether retention is near: %s"): "it is looked at again",
    ("read/reader/partition_reader.py", "%s: not from a sibling: %s"): "the broker is asked",
    ("read/decode/kernel_library.py", "compiled kernels cannot be kept in %s: %s"): (
        "a warning follows if no folder takes them"
    ),
    ("task_side.py", "the Python worker of %s is not known: no task times"): "only metrics use it",
    ("listener.py", "a report that cannot be read: %s"): "only metrics use it",
    ("listener.py", "the trigger of a query is not known"): "kshare status says it, too",
    ("listener.py", "%s, %s: %s"): "metrics",
    ("listener.py", "%s, %s, %s: %s"): "metrics",
    ("formats/schema_files.py", "schema %s is not kept for others: %s"): "they ask the registry",
    ("processing/kept_state.py", "%r is passed over: it is put back behind it"): "it comes again",
}


def low_lines() -> Iterator[tuple[str, str]]:
    """The constant texts that are logged at INFO or DEBUG, each with its module."""
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            name = str(path.relative_to(root))
            if name.startswith(("cli/", "testing/", "demo/")):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    first = node.args[0] if node.args else None
                    if node.func.attr in LOW and isinstance(first, ast.Constant):
                        yield name, str(first.value)


def test_no_fault_is_logged_below_a_warning() -> None:
    found = {(name, text) for name, text in low_lines() if FAULT.search(text)}
    assert found - HARMLESS.keys() == set()
    assert HARMLESS.keys() - found == set()  # what is listed is there
