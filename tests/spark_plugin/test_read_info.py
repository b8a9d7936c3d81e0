"""Filters are pushed only on a Spark whose class files prove that each scan keeps its own plan."""

import struct
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
import pytest
from pyspark.sql.datasource import DataSourceReader, Filter, GreaterThanOrEqual, LessThan

from kshare.testing import FakeCluster, Record
from spark_plugin import read_info
from spark_plugin.partitions import SlicePartition
from spark_plugin.read_info import installed_jars, kept_with_scan
from spark_plugin.source import KshareDataSource

FOLDER = "org/apache/spark/sql/execution/datasources/v2/python"
INFO = f"L{FOLDER}/PythonDataSourceReadInfo;"
OPTION = "Lscala/Option;"
OF_INFO = f"Lscala/Option<{INFO}>;"
PRIVATE, PUBLIC = 2, 1

Member = tuple[int, str, str, str]  # access, name, descriptor, generic signature
Classes = dict[str, tuple[list[Member], list[Member], list[str]]]  # fields, methods, other texts

GET: Member = (PUBLIC, "getOrCreateReadInfo", f"(Ljava/lang/String;Z){INFO}", "")
SET: Member = (PUBLIC, "setReadInfo", f"({INFO})V", "")
OWN: list[Member] = [
    (PRIVATE, "readInfo", f"(){INFO}", ""),
    (PRIVATE, "readInfo_$eq", f"({INFO})V", ""),
]
KEPT: Member = (PRIVATE, "readInfo", INFO, "")
KEPT_IF_ANY: Member = (PRIVATE, "readInfo", OPTION, OF_INFO)
DS: Member = (PRIVATE, "ds", f"L{FOLDER}/PythonDataSourceV2;", "")


def spark_4_3() -> Classes:
    """What ``javap -p -v`` says of Spark 4.3.0, as far as it has to do with planned reads."""
    return {
        "PythonDataSourceV2": ([KEPT], [*OWN, GET, SET], []),
        "PythonScanBuilder": ([DS], [], ["readInfo", f"(){INFO}", "setReadInfo", f"({INFO})V"]),
        "PythonScan": ([DS], [(PUBLIC, "description", "()Ljava/lang/String;", "")], []),
    }


def spark_main() -> Classes:
    """The same of Spark's main branch of August 2026, after SPARK-58551."""
    return {
        "PythonDataSourceV2": ([KEPT], [*OWN, GET], []),
        "PythonScanBuilder": (
            [DS, KEPT_IF_ANY],
            [
                (PRIVATE, "readInfo", f"(){OPTION}", f"(){OF_INFO}"),
                (PRIVATE, "readInfo_$eq", f"({OPTION})V", f"({OF_INFO})V"),
            ],
            [],
        ),
        "PythonScan": ([DS, KEPT_IF_ANY], [], ["getOrCreateReadInfo"]),
    }


def class_file(fields: Iterable[Member], methods: Iterable[Member], texts: Iterable[str]) -> bytes:
    """A class file with one constant of every kind, and an attribute to skip on each member."""
    # Constants of 8 bytes take two places.
    pool = [
        *(struct.pack(">BQ", tag, 0) for tag in (5, 6)),
        *(struct.pack(">BI", tag, 0) for tag in (3, 4, 9, 10, 11, 12, 17, 18)),
        *(struct.pack(">BH", tag, 0) for tag in (7, 8, 16, 19, 20)),
        struct.pack(">BBH", 15, 0, 0),
    ]
    places = {}

    def place(text: str) -> int:
        if text not in places:
            places[text] = len(pool) + 3
            encoded = text.encode()
            pool.append(struct.pack(">BH", 1, len(encoded)) + encoded)
        return places[text]

    def table(members: Iterable[Member]) -> bytes:
        rows = []
        for access, name, descriptor, signature in members:
            attributes = [struct.pack(">HI", place("Deprecated"), 3) + b"\1\2\3"]
            if signature:
                attributes.append(struct.pack(">HIH", place("Signature"), 2, place(signature)))
            head = (access, place(name), place(descriptor), len(attributes))
            rows.append(struct.pack(">HHHH", *head) + b"".join(attributes))
        return struct.pack(">H", len(rows)) + b"".join(rows)

    body = struct.pack(">HHHHHH", PUBLIC, 0, 0, 2, 0, 0) + table(fields) + table(methods)
    for text in texts:
        place(text)
    head = struct.pack(">IHHH", 0xCAFEBABE, 0, 61, len(pool) + 3)
    return head + b"".join(pool) + body + struct.pack(">H", 0)


def write_jar(folder: Path, classes: Classes) -> Path:
    jar = folder / "jars" / "spark-sql_2.13-9.9.9.jar"
    jar.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, members in classes.items():
            archive.writestr(f"{FOLDER}/{name}.class", class_file(*members))
    return jar


# -- what is a proof ------------------------------------------------------------------------------


def test_spark_4_3_keeps_it_with_the_source(tmp_path: Path) -> None:
    assert not kept_with_scan(write_jar(tmp_path, spark_4_3()))


def test_sparks_main_branch_keeps_it_with_the_scan(tmp_path: Path) -> None:
    assert kept_with_scan(write_jar(tmp_path, spark_main()))


def _set(classes: Classes) -> None:
    classes["PythonDataSourceV2"][1].append(SET)


def _set_an_option(classes: Classes) -> None:
    taking = (PUBLIC, "keep", f"({OPTION})V", f"({OF_INFO})V")
    classes["PythonDataSourceV2"][1].append(taking)


def _a_builder_that_asks_the_source(classes: Classes) -> None:
    classes["PythonScanBuilder"][2].append("getOrCreateReadInfo")


def _a_scan_without_it(classes: Classes) -> None:
    classes["PythonScan"][0].remove(KEPT_IF_ANY)


def _a_scan_with_an_option_of_something(classes: Classes) -> None:
    _a_scan_without_it(classes)
    classes["PythonScan"][0].append((PRIVATE, "readInfo", OPTION, "Lscala/Option<Ljava/lang/X;>;"))


def _a_builder_without_it(classes: Classes) -> None:
    classes["PythonScanBuilder"][0].remove(KEPT_IF_ANY)


def _no_scan(classes: Classes) -> None:
    del classes["PythonScan"]


def _no_source(classes: Classes) -> None:
    del classes["PythonDataSourceV2"]


@pytest.mark.parametrize(
    "change",
    [
        _set,
        _set_an_option,
        _a_builder_that_asks_the_source,
        _a_scan_without_it,
        _a_scan_with_an_option_of_something,
        _a_builder_without_it,
        _no_scan,
        _no_source,
    ],
)
def test_what_is_a_little_different_proves_nothing(
    tmp_path: Path, change: Callable[[Classes], None]
) -> None:
    classes = spark_main()
    change(classes)
    assert not kept_with_scan(write_jar(tmp_path, classes))


@pytest.mark.parametrize("cut", [0, 3, 9, 40, 200, -1])
def test_a_damaged_class_proves_nothing(tmp_path: Path, cut: int) -> None:
    jar = write_jar(tmp_path, spark_main())
    whole = class_file(*spark_main()["PythonScan"])
    kept = spark_main()
    del kept["PythonScan"]
    write_jar(tmp_path, kept)
    with zipfile.ZipFile(jar, "a") as archive:
        archive.writestr(f"{FOLDER}/PythonScan.class", b"\0" + whole if cut < 0 else whole[:cut])
    assert not kept_with_scan(jar)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 no jar"])
def test_a_damaged_jar_proves_nothing(tmp_path: Path, content: bytes | None) -> None:
    jar = tmp_path / "spark-sql_2.13-9.9.9.jar"
    if content is not None:
        jar.write_bytes(content)
    assert not kept_with_scan(jar)


# -- which jar ------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where PySpark lies, and SPARK_HOME; there is no jar in either."""
    beside, home = tmp_path / "site" / "pyspark", tmp_path / "home"
    monkeypatch.setattr(pyspark, "__file__", str(beside / "__init__.py"))
    monkeypatch.setenv("SPARK_HOME", str(home))
    read_info.scans_keep_read_info.cache_clear()
    return beside, home


@pytest.mark.parametrize(
    ("beside", "home", "safe"),
    [
        (None, None, False),
        (spark_main, None, True),
        (None, spark_main, True),
        (spark_main, spark_main, True),
        (spark_main, spark_4_3, False),
        (spark_4_3, spark_main, False),
        (spark_4_3, None, False),
    ],
)
def test_all_sparks_that_may_be_the_jvms_must_prove_it(
    places: tuple[Path, Path],
    beside: Callable[[], Classes] | None,
    home: Callable[[], Classes] | None,
    safe: bool,
) -> None:
    for folder, classes in zip(places, (beside, home), strict=True):
        if classes is not None:
            write_jar(folder, classes())
    assert read_info.scans_keep_read_info() == safe
    read_info.scans_keep_read_info.cache_clear()


def test_pyspark_in_a_zip_has_no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "pyspark.zip"
    archive.touch()
    monkeypatch.setattr(pyspark, "__file__", str(archive / "pyspark" / "__init__.py"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert installed_jars() == []


def test_the_installed_spark_keeps_it_with_the_source() -> None:
    """When this fails, Spark has mended it, and filters are pushed."""
    jars = installed_jars()
    assert len(jars) >= 1
    with zipfile.ZipFile(jars[0]) as archive:  # so it was found, and could be read
        source = read_info._parsed(archive.read(f"{FOLDER}/PythonDataSourceV2.class"))
    assert {"getOrCreateReadInfo", "inferSchema"} <= {method.name for method in source.methods}
    assert not any(kept_with_scan(jar) for jar in jars), (
        f"Spark {pyspark.__version__} keeps a planned read with its scan, so kshare pushes "
        "filters. See that integration/test_reused_frames.py passes, describe it in "
        "docs/migrating.md and CHANGELOG.md, and turn this test round"
    )


# -- what is done about it ------------------------------------------------------------------------


@pytest.fixture
def pushing(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the worker in which Spark pushes filters."""
    name = read_info._PUSHING
    monkeypatch.setitem(sys.modules, name, ModuleType(name))


def offsets_planned(servers: str, topic: str, pushed: list[Filter]) -> tuple[list[int], list[Any]]:
    """What Spark's worker does with a source and filters; the offsets that the tasks would read."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    source = KshareDataSource(options)
    reader = source.reader(source.schema())
    left = list(reader.pushFilters(pushed))
    planned: list[int] = []
    for task in reader.partitions():
        assert isinstance(task, SlicePartition)
        for read in task.slices:
            planned += range(read.slice.offsets.start, read.slice.offsets.end)
    return planned, left


@pytest.mark.usefixtures("pushing")
@pytest.mark.parametrize("safe", [True, False])
def test_a_plan_leaves_out_only_what_no_other_query_may_want(
    monkeypatch: pytest.MonkeyPatch, safe: bool
) -> None:
    monkeypatch.setattr(read_info, "scans_keep_read_info", lambda: safe)
    with FakeCluster() as cluster:
        topic = cluster.create_topic("t")
        cluster.produce(topic, [Record(b"k", b"v")] * 22)
        pushed: list[Filter] = [GreaterThanOrEqual(("offset",), 15), LessThan(("offset",), 20)]
        planned, left = offsets_planned(cluster.bootstrap_servers, topic, pushed)
    assert planned == list(range(15, 20) if safe else range(22))
    assert left == pushed  # Spark applies them in any case


@pytest.mark.usefixtures("pushing")
def test_a_reader_of_the_installed_spark_takes_no_filters() -> None:
    source = KshareDataSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    reader = source.reader(source.schema())
    assert type(reader).pushFilters is DataSourceReader.pushFilters
