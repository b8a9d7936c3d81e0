"""confluent-kafka-python's own tests of its consumer, run against ``KeySharedConsumer``.

``python -m integration.confluent_tests [--repository URL] [--tag v2.15.0] [PYTEST ARGUMENTS]``

Its tests are in its repository alone (the sdist has none): they are cloned into the cache, and run
on a broker of the project's, with ``confluent_kafka.Consumer`` replaced. It prints each test that
fails, with its error, and how many of how many pass. What fails is a row of docs/consumer.md,
"confluent-kafka's tests". Needs git, and access to the repository.
"""

import argparse
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

from integration.jars import CACHE, ROOT
from integration.kafka import KafkaBroker

_REPOSITORY: Final = "https://github.com/confluentinc/confluent-kafka-python"
_FILES: Final = ("tests/test_Consumer.py", "tests/integration/consumer")


def fetched(repository: str, tag: str) -> Path:
    """A clone at a tag, made once."""
    place = CACHE / f"confluent-kafka-python-{tag}"
    if not place.exists():
        options = ["--quiet", "-c", "advice.detachedHead=false", "--depth", "1", "--branch", tag]
        subprocess.run(["git", "clone", *options, repository, str(place)], check=True)
    return place


def main(arguments: list[str]) -> int:
    """Run them; the exit code is 1 if a test fails."""
    parser = argparse.ArgumentParser(prog="integration.confluent_tests")
    parser.add_argument("--repository", default=_REPOSITORY)
    parser.add_argument("--tag", default="v2.15.0")
    given, others = parser.parse_known_args(arguments)
    place = fetched(given.repository, given.tag)
    report = place / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "integration.confluent_plugin"]
    command += ["--timeout=60", f"--junitxml={report}", "-o", "addopts=", *(others or _FILES)]
    report.unlink(missing_ok=True)
    with KafkaBroker() as broker:
        broker.create_topic("test", partitions=100)  # librdkafka asks for it later than kshare
        environment = {
            **os.environ,
            "BROKERS": broker.bootstrap_servers,
            "PYTHONPATH": os.pathsep.join([str(place), str(ROOT)]),
        }
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
    if not report.exists():
        print(done.stdout, done.stderr)
        return 1
    (place / "report.txt").write_text(done.stdout)
    return _show(report)


def _show(report: Path) -> int:
    cases = list(ET.parse(report).iter("testcase"))
    failed = 0
    for case in cases:
        fault = next((each for each in case if each.tag in {"failure", "error"}), None)
        if fault is not None:
            failed += 1
            text = (fault.get("message") or "").splitlines() or [""]
            print(f"{case.get('classname')}.{case.get('name')}: {text[0][:160]}")
    skipped = sum(each.tag == "skipped" for case in cases for each in case)
    total = len(cases) - skipped
    print(f"{total - failed} of {total} pass, {skipped} are skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
