"""The jars of a real Kafka broker and of Spark's own kafka source, from Maven Central.

A set of jars is complete or absent: it is fetched to a temporary folder and then moved. This needs
only Java: the resolver (Apache Ivy) comes with pyspark. Fetching takes about a minute, once; the
jars are kept in ``.cache``.
"""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
ATTEMPTS = 3
FETCH_TIMEOUT_S = 600


@dataclass(frozen=True)
class JarSet:
    """What to fetch.

    Attributes:
        modules: ``organisation:module:revision`` each.
        transitive: with what they depend on.
        without: regular expressions of organisations whose modules are left out.
        holds: the beginnings of names of jars that must be there.
        archive: None for jars; else the classifier of the one ``tar.gz`` that a module has in
            their place, whose contents are kept.
    """

    modules: tuple[str, ...]
    transitive: bool
    without: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    archive: str | None = None


def _peer(connector: str, tokens: str) -> JarSet:
    """Return Spark's own kafka source, for a Spark of about that version."""
    return JarSet(
        (
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{connector}",
            f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{tokens}",
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.commons:commons-pool2:2.13.1",
        ),
        transitive=False,
        holds=("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2"),
    )


def _module(name: str, release: str) -> JarSet:
    """Return a module of Spark's that pyspark does not come with."""
    return JarSet((f"org.apache.spark:{name}_2.13:{release}",), transitive=False, holds=(name,))


JARS = {
    "broker": JarSet(
        (
            "org.apache.kafka:kafka_2.13:4.1.1",
            "org.apache.kafka:kafka-tools:4.1.1",
            "org.slf4j:slf4j-simple:1.7.36",
        ),
        transitive=True,
        # Of Kafka Connect, which kafka-tools comes with.
        without=(
            r"org\.eclipse\.jetty.*",
            r"org\.glassfish.*",
            "jakarta.*",
            "javax.*",
            r"io\.swagger.*",
        ),
        holds=("kafka_2.13-4.1.1", "kafka-tools-4.1.1", "kafka-clients-4.1.1", "scala-library"),
    ),
    # Confluent's Parallel Consumer, which benchmarks compare processors with.
    "parallel-consumer": JarSet(
        (
            "io.confluent.parallelconsumer:parallel-consumer-core:0.5.3.3",
            "org.slf4j:slf4j-nop:2.0.17",
        ),
        transitive=True,
        holds=("parallel-consumer-core-0.5.3.3", "kafka-clients", "slf4j-nop"),
    ),
    # A schema registry, with all that it runs on. Confluent's own was not to be had.
    "registry": JarSet(
        ("io.apicurio:apicurio-registry-app:2.6.13.Final",),
        transitive=False,
        holds=("apicurio-registry-app-2.6.13.Final-runner",),
        archive="all",
    ),
    "peer-4.0": _peer("4.0.2", "4.0.0"),
    "peer-4.1": _peer("4.1.1", "4.1.1"),
    # Newer ones were not to be had on 2026-11-21; these run under pyspark 4.2 and 4.3.
    "peer": _peer("4.2.0", "4.1.0-preview1"),
    # Spark's own from_avro; 4.3.0 was not to be had, and 4.2.0 runs under pyspark 4.3.
    "avro-4.0": _module("spark-avro", "4.0.2"),
    "avro-4.1": _module("spark-avro", "4.1.1"),
    "avro": _module("spark-avro", "4.2.0"),
    # What spark-protobuf reads messages with; it was not to be had itself, of no version.
    "protobuf": JarSet(
        ("com.google.protobuf:protobuf-java:4.33.6",), transitive=False, holds=("protobuf-java",)
    ),
}


def peer() -> tuple[Path, ...]:
    """Return the jars of Spark's own kafka source, for the Spark that is installed."""
    return module("peer")


def module(name: str) -> tuple[Path, ...]:
    """Return the jars of a module of Spark's, such as avro, for the Spark that is installed."""
    release = ".".join(version("pyspark").split(".")[:2])
    return fetched(f"{name}-{release}" if f"{name}-{release}" in JARS else name)


def java() -> str:
    """Return the Java that JAVA_HOME or the PATH names."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None or not Path(path).exists():
        raise RuntimeError("Java 17 or later is needed: put it on the PATH, or set JAVA_HOME")
    return path


def compiled(source: Path, folder: Path, jars: Iterable[Path] = ()) -> Path:
    """Compile a class into a folder, and return the folder.

    Args:
        source: The class.
        folder: The folder.
        jars: What it needs; none: the broker's jars.
    """
    javac = Path(java()).resolve().with_name("javac")
    path = os.pathsep.join(map(str, jars or fetched("broker")))
    subprocess.run([str(javac), "-cp", path, "-d", str(folder), str(source)], check=True)
    return folder


def of_spark() -> tuple[Path, ...]:
    """Return the jars that pyspark comes with."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return tuple((Path(spec.origin).parent / "jars").glob("*.jar"))


@cache
def fetched(name: str) -> tuple[Path, ...]:
    """Return the jars of a set, fetched if they are missing.

    RuntimeError: they cannot be fetched; with what the resolver said.
    """
    destination = CACHE / "jars" / name
    with locked(CACHE / "jars.lock"):
        if not _is_whole(destination, JARS[name]):
            _fetch(name, destination)
    return tuple(sorted(destination.glob("*.jar")))


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock, which is released when this process ends in any way."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_whole(destination: Path, jars: JarSet) -> bool:
    return all(any(destination.glob(f"{start}*.jar")) for start in jars.holds)


def _fetch(name: str, destination: Path) -> None:
    sys.stdout.write(f"fetching the jars of the {name} from Maven Central ...\n")
    jars, said = JARS[name], ""
    destination.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
            complete = Path(folder) / "made"
            said = _resolve(jars, Path(folder), complete)
            if _is_whole(complete, jars):
                if destination.exists():
                    destination.rename(Path(folder) / "old")
                complete.rename(destination)
                return
    raise RuntimeError(f"cannot fetch the jars of the {name}:\n{said[-4000:]}")


def _resolve(jars: JarSet, folder: Path, complete: Path) -> str:
    """Fetch jars into a folder with Ivy, and return its output."""
    ivy_file = folder / "ivy.xml"
    ivy_file.write_text(_ivy_text(jars))
    resolver = next(jar for jar in of_spark() if jar.name.startswith("ivy-"))
    types = ["jar", "bundle"] if jars.archive is None else ["tar.gz"]
    command = [java(), "-jar", str(resolver), "-ivy", str(ivy_file), "-types", *types]
    command += ["-cache", str(CACHE / "ivy"), "-retrieve"]
    command += [str(complete / "[artifact]-[revision](-[classifier]).[ext]")]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S
    )
    for archive in complete.glob("*.tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(complete, filter="data")
        archive.unlink()
    return done.stdout + done.stderr


def _ivy_text(jars: JarSet) -> str:
    wanted = []
    for module in jars.modules:
        organisation, name, revision = module.split(":")
        wanted.append(
            f'<dependency org="{organisation}" name="{name}" rev="{revision}" '
            f'conf="default->{"default" if jars.transitive else "master"}" '
            f'transitive="{str(jars.transitive).lower()}">'
        )
        if jars.archive is not None:
            wanted.append(
                f'<artifact name="{name}" type="tar.gz" ext="tar.gz" '
                f'm:classifier="{jars.archive}"/>'
            )
        wanted.append("</dependency>")
    left_out = [f'<exclude org="{name}" matcher="regexp"/>' for name in jars.without]
    return "\n".join(
        [
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
            '<info organisation="kshare" module="jars"/>',
            '<configurations><conf name="default"/></configurations>',
            "<dependencies>",
            *wanted,
            *left_out,
            "</dependencies>",
            "</ivy-module>",
        ]
    )
