"""An installed kshare, started in folders with files that would hide what it needs.

The wheel is built once, and installed beside the packages of this environment.
"""

import os
import shutil
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from kshare.testing import Record, produce

ROOT = Path(__file__).resolve().parents[1]
COUNT = 20
QUERY = """
import os, sys, tempfile
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

sys.path.append(os.getcwd())
servers, topic = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
options = {"kafka.bootstrap.servers": servers}
rows = spark.readStream.format("kshare").options(**options).option("subscribe", topic)
rows = rows.option("startingOffsets", "earliest").option("minPartitions", 2).load()
if os.path.exists("prices.py"):
    import prices
    rows = rows.withColumn("value", udf(prices.price, "string")("offset"))
with tempfile.TemporaryDirectory() as folder:
    rows = rows.selectExpr("CAST(value AS STRING) value")
    writer = rows.writeStream.format("kshare").options(**options).option("topic", topic + "-out")
    writer = writer.option("checkpointLocation", folder).trigger(availableNow=True)
    writer.start().awaitTermination()
out = spark.read.format("kshare").options(**options).option("subscribe", topic + "-out").load()
print(sorted({row.value.decode() for row in out.collect()}), out.count())
"""
CONSUMER = """
import sys
import kshare
from kshare.group import KeySharedConsumer
servers, group = sys.argv[1:]
config = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
with KeySharedConsumer(config) as consumer:
    consumer.subscribe([group])
    count = 0
    while count < 20:
        count += len(consumer.consume(20, 10))
print(count, kshare.__file__)
"""


class Installed:
    """An environment with kshare's wheel.

    Args:
        home: An empty folder.
    """

    def __init__(self, home: Path) -> None:
        self._bin = home / "env" / "bin"
        venv.create(home / "env")
        site = next((home / "env").glob("lib/python3*/site-packages"))
        # A line of a .pth file: those of that folder, which name this clone, are not read.
        numpy = find_spec("numpy")
        assert numpy is not None
        assert numpy.origin is not None
        (site / "rest.pth").write_text(f"{Path(numpy.origin).parents[1]}\n")
        pip = [sys.executable, "-m", "pip"]
        can_build = find_spec("hatchling") and find_spec("numba")
        build = [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(home)]
        build += ["--no-build-isolation"] if can_build else []
        subprocess.run([*build, str(ROOT)], check=True)
        (wheel,) = home.glob("kshare-*.whl")
        install = [*pip, "--python", str(self._bin / "python"), "install", "--quiet", "--no-deps"]
        subprocess.run([*install, "--ignore-installed", str(wheel)], check=True)
        self.site = site

    def run(self, folder: Path, *command: str, **environment: str) -> tuple[str, str]:
        """Run a program of the environment; return what it prints, and its error stream."""
        dropped = ("PYTHONPATH", "SPARK_HOME", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        done = subprocess.run(
            [str(self._bin / command[0]), *command[1:]],
            cwd=folder,
            env={
                **kept,
                "PYSPARK_PYTHON": str(self._bin / "kshare-python"),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=580,
        )
        return done.stdout, done.stderr

    def python(self) -> str:
        """The environment's plain Python."""
        return str(self._bin / "python3")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder of its own for scripts: one in the other folder would look there by itself."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "query.py").write_text(QUERY)
    (folder / "consumer.py").write_text(CONSUMER)
    return folder


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone that nobody has built."""
    folder = tmp_path / "clone"
    ignored = shutil.ignore_patterns("kernels-*.so*", "__pycache__")
    for name in ("kshare", "spark_plugin"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyspark_kshare.py", "hatch_build.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """A folder of a user's, with a module that a UDF imports."""
    folder = tmp_path / "users"
    (folder / "kafka").mkdir(parents=True)
    for name in ("kafka/__init__", "numpy", "queue", "logging", "types", "random", "mmh3"):
        (folder / f"{name}.py").write_text("mine = True\n")
    (folder / "prices.py").write_text("def price(offset):\n    return f'price {offset % 2}'\n")
    return folder


@pytest.fixture
def filled(broker: KafkaBroker, topic: str) -> str:
    produce(broker.bootstrap_servers, topic, [Record(b"%d" % n, b"v") for n in range(COUNT)])
    broker.create_topic(f"{topic}-out")
    return topic


@pytest.mark.parametrize("optimize", ["", "1"])
def test_a_query_with_users_files_and_a_consumer(
    installed: Installed,
    scripts: Path,
    users: Path,
    broker: KafkaBroker,
    filled: str,
    optimize: str,
) -> None:
    """The users' own module is found. Where Python leaves asserts out, all is the same."""
    arguments = (broker.bootstrap_servers, filled)
    query, consumer = str(scripts / "query.py"), str(scripts / "consumer.py")
    out, err = installed.run(users, "python", query, *arguments, PYTHONOPTIMIZE=optimize)
    assert out.splitlines()[-1:] == [f"['price 0', 'price 1'] {COUNT}"], err[-5000:]
    out, err = installed.run(users, "python", consumer, *arguments, PYTHONOPTIMIZE=optimize)
    assert out == f"{COUNT} {installed.site}/kshare/__init__.py\n", err
    command = ("kshare", "doctor", "--bootstrap-servers", broker.bootstrap_servers)
    out, err = installed.run(users, *command, "--topic", filled, PYTHONOPTIMIZE=optimize)
    assert f"kshare in {installed.site}/kshare, and all that it needs" in out, out + err
    assert "\nred " not in f"\n{out}"


@pytest.mark.parametrize("python", ["kshare-python", "python3"])
def test_a_query_in_a_clone_that_is_not_built(
    installed: Installed, scripts: Path, clone: Path, broker: KafkaBroker, filled: str, python: str
) -> None:
    environment = {} if python == "kshare-python" else {"PYSPARK_PYTHON": installed.python()}
    arguments = (broker.bootstrap_servers, filled)
    out, err = installed.run(clone, "python", str(scripts / "query.py"), *arguments, **environment)
    assert out.splitlines()[-1:] == [f"['v'] {COUNT}"], err[-5000:]
    out, err = installed.run(clone, "kshare", "doctor", **environment)
    home = installed.site if python == "kshare-python" else clone
    assert f"kshare in {home}/kshare" in out, out + err
    assert "\nred " not in f"\n{out}"
    shutil.copy(scripts / "consumer.py", clone)
    out, err = installed.run(clone, "python", "consumer.py", *arguments)
    assert out == f"{COUNT} {clone}/kshare/__init__.py\n", err
