"""``kshare doctor``: is everything there that a query needs?

Guarantees: nothing is changed, and no check ends the others.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec

from kshare.cli.arguments import FEATURES
from kshare.cli.connection import is_given, source_options
from kshare.cli.doctor_cluster import examine_cluster
from kshare.cli.doctor_workers import examine_workers, run_program
from kshare.cli.features import Feature
from kshare.cli.findings import Finding, Level, text_of_finding
from kshare.cli.output import Answer, say_block
from kshare.cli.query import observed_status
from kshare.cli.show import alarms, batches_text, late_rows, records_left
from kshare.core.showing import shown_error
from kshare.errors import KafkaError, KshareError
from kshare.kafka.listening import COMMAND_SECONDS, check_listening
from kshare.monitor.status import unchanged_text
from kshare.operating_system import OperatingSystem, this_system
from kshare.options import KafkaConfig
from kshare.query.feedback.messages import TaskReport
from kshare.query.feedback.server import FeedbackServer

if TYPE_CHECKING:
    from kshare.options.typed_rows import RegistryConfig

__all__ = [
    "examine_checkpoint",
    "examine_compiled_code",
    "examine_feedback",
    "examine_java",
    "examine_system",
    "run",
]

_P = ParamSpec("_P")
_SPARK_SECONDS_MAX: Final = 180.0
_SECONDS_MAX: Final = 60.0
_JAVA_MIN: Final = 17
_THREADS: Final = (
    "a thread of your own calls spark_plugin.use_in_thread(spark) before it writes, else it finds "
    "no kshare"
)
_QUERY: Final = """
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
arrow = "spark.sql.execution.arrow.maxRecordsPerBatch"
if int(session.conf.get(arrow)) <= 0:
    raise ValueError(f"{arrow}={session.conf.get(arrow)}: PySpark's data sources need 1 or more")
options = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
columns = session.read.format("kshare").options(**options).load().columns
session.stop()
print("\\n" + ",".join(columns))
"""


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Answer:
    """Run the command; the exit code is 1 if something is red.

    Raises:
        SystemExit: ``--topic`` or ``--feature`` is given without a broker (code 2).
    """
    has_registry = arguments.registry is not None or arguments.registry_config is not None
    is_of_registry = arguments.topic and not arguments.feature and has_registry
    if (arguments.topic or arguments.feature) and not is_given(arguments) and not is_of_registry:
        option = "--topic" if arguments.topic else "--feature"
        parser.error(f"{option} is of a cluster: give --bootstrap-servers, or --kafka-config")
    findings = []
    for finding in _findings(arguments):
        findings.append(finding)
        if not arguments.json:
            say_block(text_of_finding(finding))
            sys.stdout.flush()
    code = int(any(finding.level == "red" for finding in findings))
    return Answer([asdict(each) for each in findings], "", code)  # the text is there already


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    # All options first: a fault of theirs is no finding, and what was found would be lost with it.
    environment, registry = dict(os.environ), _registry(arguments)
    kafka = source_options(arguments).kafka if is_given(arguments) else None
    yield from _all_of("workers' Python", examine_workers, environment)
    yield from _all_of("Java", examine_java, environment)
    yield from _all_of("compiled code", examine_compiled_code)
    yield from _all_of("system", examine_system, this_system())
    if arguments.spark:
        yield from _all_of("Spark", _spark)
    if arguments.checkpoint is not None:
        yield from _all_of("checkpoint", examine_checkpoint, arguments.checkpoint, kafka)
    if kafka is not None:
        asked = [Feature(name.replace("-", " ")) for name in arguments.feature or FEATURES[:1]]
        yield from _all_of("brokers", examine_cluster, kafka, arguments.topic, asked)
        yield from _all_of("feedback", examine_feedback, kafka)
    if registry is not None:
        # Formats, and the registry's client: who asks for none of it does without.
        from kshare.cli.doctor_registry import examine_registry  # noqa: PLC0415

        yield from _all_of("registry", examine_registry, registry, arguments.topic)


def _all_of(
    name: str, check: Callable[_P, Finding | Iterable[Finding]], *args: _P.args, **more: _P.kwargs
) -> Iterator[Finding]:
    """The findings of a check; one more if it fails: the others are not to blame."""
    try:
        found = check(*args, **more)
        yield from [found] if isinstance(found, Finding) else found
    except Exception as error:  # a program or a broker may say anything
        text = f"this check has failed itself: {shown_error(error)}"
        yield Finding(name, "red", text, "the fault is in kshare: please report this line")


def _registry(arguments: argparse.Namespace) -> "RegistryConfig | None":
    """The connection to a registry; None if none is given."""
    if arguments.registry is None and arguments.registry_config is None:
        return None
    from kshare.cli.doctor_registry import registry_config  # noqa: PLC0415 - as above

    return registry_config(arguments.registry, arguments.registry_config)


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
        columns = (done.stdout.splitlines() or [""])[-1]
        text = f"a session finds format('kshare'): {columns}"
        return Finding("Spark", "green", text, _THREADS)
    said = [line.strip() for line in done.stderr.splitlines()]
    faults = [line for line in said if re.search(r"\[[A-Z_]{5,}(\.[A-Z_]+)?\]|Error: ", line)]
    fault = faults[-1] if faults else ""
    remedy = "see the findings above, and docs/troubleshooting.md"
    return Finding("Spark", "red", (fault or "it failed")[:500], remedy)


def examine_java(environment: Mapping[str, str]) -> Finding:
    """Look at the Java that Spark will run."""
    home = environment.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = java or shutil.which("java", path=environment.get("PATH"))
    remedy = f"install Java {_JAVA_MIN} or later; put java on the PATH, or set JAVA_HOME"
    if java is None:
        return Finding("Java", "red", "there is none", remedy)
    try:
        done = run_program([java, "-version"], environment, seconds_max=_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("Java", "red", f"{java} does not run: {error}", remedy)
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if match is None:
        return Finding("Java", "yellow", f"{java} says no version", remedy)
    major = int(match[2]) if match[1] == "1" and match[2] else int(match[1])
    if major < _JAVA_MIN:
        return Finding("Java", "red", f"{java} is Java {major}", remedy)
    return Finding("Java", "green", f"{java}, Java {major}")


def examine_compiled_code() -> Finding:
    """Load the reader's compiled code, and call a function of it."""
    import numpy as np  # noqa: PLC0415 - with Arrow 0.2 s, which the command's help does without

    try:
        from kshare.read.decode import compiled  # noqa: PLC0415 - as above
        from kshare.read.decode.layout import BATCH, BatchCount  # noqa: PLC0415 - as above

        compiled.index(np.zeros(1, np.uint8), np.zeros(1, BATCH), BatchCount())
    except Exception as error:  # whatever it is, tasks would meet it too
        text = f"the reader's machine code does not load: {type(error).__name__}: {error}"
        return Finding("compiled code", "red", text, "install kshare again")
    return Finding("compiled code", "green", "the reader's machine code loads")


def examine_system(system: OperatingSystem) -> Iterator[Finding]:
    """Say what it costs that this system is not Linux; nothing where it costs nothing."""
    if costs := system.costs():
        remedy = "nothing is lost; docs/tuning.md, Other systems, says what each costs"
        yield Finding("system", "yellow", "; ".join(costs), remedy)


def examine_checkpoint(directory: str, kafka: KafkaConfig | None) -> Iterator[Finding]:
    """Look at a query's checkpoint, and compare it with its cluster, if that answers.

    Args:
        directory: Its ``checkpointLocation``.
        kafka: How to reach the cluster; None to look at the checkpoint alone.
    """
    warnings = list[str]()
    try:
        if kafka is not None:
            check_listening(kafka, COMMAND_SECONDS)
        status = observed_status(directory, kafka, warnings.append)
    except KafkaError as error:
        remedy = "repair what 'brokers' says; what follows is of the checkpoint alone"
        yield Finding("checkpoint on its brokers", "red", str(error), remedy)
        yield from examine_checkpoint(directory, None)
        return
    except KshareError as error:
        yield Finding("checkpoint", "red", str(error), "name the checkpointLocation of a query")
        return
    if warnings:
        lacks_logs = any(each.log is None for each in status.partitions)
        remedy = "what follows is without these: see the findings of the cluster"
        level: Level = "red" if lacks_logs else "yellow"
        yield Finding("checkpoint on its brokers", level, "; ".join(warnings), remedy)
    faults = [
        f"{each.topic_partition}: {text}" for each in status.partitions for text in alarms(each)
    ]
    now = time.time()
    still = status.unchanged_seconds(now)
    facts = batches_text(status.checkpoint)
    if faults:
        remedy = "see docs/troubleshooting.md"
        yield Finding("checkpoint", "red", f"{facts}; {'; '.join(faults)}", remedy)
    elif still is not None:
        text = f"{facts}, {unchanged_text(still)}"
        yield Finding("checkpoint", "yellow", text, "look whether the query runs")
    else:
        yield Finding("checkpoint", "green", facts)
    notes = {"event time": late_rows(status), "unread records": records_left(status, now)}
    for name, note in notes.items():
        if note is not None:
            yield Finding(name, "red" if note.is_sure else "yellow", note.text, note.remedy)


def examine_feedback(kafka: KafkaConfig) -> Finding:
    """Listen as a planner does on this machine, and connect as a task would."""
    server = FeedbackServer(kafka.bootstrap_servers[0])
    with closing(server):
        if server.start():
            ticket = server.ticket("doctor", 0, hold=False)
            report = TaskReport(ticket)
            report.begin()
            if report.connected:
                report.close()
                text = f"tasks on this machine reach the planner at {ticket.host}"
                return Finding("feedback", "green", f"{text}; from others, any port there")
    remedy = "let executors connect to the driver's machine; without, only whole batches are timed"
    return Finding("feedback", "yellow", "tasks cannot report to a planner on this machine", remedy)
