"""``kshare doctor``: is everything there that a query needs?

Guarantees: nothing is changed, and no check ends the others.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from kshare.cli.connection import is_given, kafka_config
from kshare.cli.health.cluster import examine_cluster, examine_feedback
from kshare.cli.health.environment import examine_compiled_code, examine_java, examine_workers
from kshare.cli.health.finding import Finding, Level
from kshare.cli.health.program import run_program

__all__ = ["run"]

_COLOURS: Final[dict[Level, int]] = {"green": 32, "yellow": 33, "red": 31}
_SPARK_SECONDS_MAX: Final = 180.0
_QUERY: Final = """
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
options = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
columns = session.read.format("kshare").options(**options).load().columns
session.stop()
print("\\n" + ",".join(columns))
"""


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code: 1 if something is red.

    Raises:
        SystemExit: ``--topic`` is given without a broker (code 2).
    """
    if arguments.topic and not is_given(arguments):
        parser.error("--topic is on a cluster: give --bootstrap-servers, or --kafka-config")
    worst = 0
    findings = []
    for finding in _findings(arguments):
        findings.append(finding)
        worst = max(worst, list(_COLOURS).index(finding.level))
        if not arguments.json:
            sys.stdout.write(_text(finding))
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(each) for each in findings], indent=2) + "\n")
    return int(worst == list(_COLOURS).index("red"))


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    environment = dict(os.environ)
    yield from examine_workers(environment)
    yield examine_java(environment)
    yield examine_compiled_code()
    if arguments.spark:
        yield _spark()
    if is_given(arguments):
        kafka = kafka_config(arguments)
        yield from examine_cluster(kafka, arguments.topic)
        yield examine_feedback(kafka)


def _spark() -> Finding:
    """Start a session, and let it look for the source as a query does."""
    try:
        done = run_program(
            [sys.executable, "-c", _QUERY], os.environ, seconds_max=_SPARK_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        text = f"no answer within {_SPARK_SECONDS_MAX:.0f} s"
        return Finding("Spark", "red", text, "run the same in a shell, and look at its log")
    if done.returncode == 0:
        text = f"a session finds format('kshare'): {done.stdout.splitlines()[-1]}"
        return Finding("Spark", "green", text)
    said = [line.strip() for line in done.stderr.splitlines()]
    faults = [line for line in said if re.search(r"\[[A-Z_]{5,}(\.[A-Z_]+)?\]|Error: ", line)]
    fault = faults[-1] if faults else ""
    remedy = "see the findings above, and docs/troubleshooting.md"
    return Finding("Spark", "red", (fault or "it failed")[:500], remedy)


def _text(finding: Finding) -> str:
    mark = f"{finding.level:<6}"
    if sys.stdout.isatty():
        mark = f"\033[{_COLOURS[finding.level]}m{mark}\033[0m"
    remedy = f"\n       -> {finding.remedy}" if finding.remedy else ""
    return f"{mark} {finding.check}: {finding.text}{remedy}\n"
