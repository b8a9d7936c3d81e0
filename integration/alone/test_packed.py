"""``spark-submit --archives``: executors have no installation, only the packed environment."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.runs import ROOT
from integration.standalone import CONFIG, StandaloneCluster
from kshare.testing import Record
from tests.support.documents import documents

COUNT = 500

JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = (
    spark.readStream.format("kshare")
    .option("kafka.bootstrap.servers", "{servers}")
    .option("subscribe", "{topic}")
    .option("startingOffsets", "earliest")
    .option("keyRanges", "2")
    .load()
)
query = (
    rows.select("key", "partition", "offset").writeStream.format("parquet")
    .option("path", "{out}").option("checkpointLocation", "{out}-checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()


def where(_):
    import kshare
    return kshare.__file__


print("rows", spark.read.parquet("{out}").select("offset").distinct().count())
for file in spark.sparkContext.parallelize(range(2), 2).map(where).distinct().collect():
    print("kshare", file)
"""


def java() -> dict[str, str]:
    """Where Java and its settings are, if something says so."""
    return {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}


def recipe() -> str:
    """The commands of docs/deployment.md."""
    page = next(each for each in documents() if each.path == "docs/deployment.md")
    (lines,) = (fence.text for fence in page.fences if "--archives" in fence.text)
    return lines


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but kshare's wheel, and what that asks for."""
    home = tmp_path_factory.mktemp("packed")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(home)]
    subprocess.run([*wheel, str(ROOT)], check=True)
    venv.create(home / "env", with_pip=True)
    (file,) = home.glob("*.whl")
    pip = [str(home / "env" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, str(file)], check=True)
    return home


def test_the_recipe_of_the_docs(
    environment: Path, broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    broker.produce(topic, [Record(b"key-%d" % n, b"v") for n in range(COUNT)])
    out = tmp_path / "out"
    job = JOB.format(servers=broker.bootstrap_servers, topic=topic, out=out)
    (environment / "job.py").write_text(job)
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        cluster.add_workers(2)
        settings = " ".join(f"--conf '{name}={value}'" for name, value in CONFIG.items())
        submit = f"spark-submit --master {cluster.url} {settings} "
        script = f". env/bin/activate\n{recipe().replace('spark-submit ', submit)}"
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=environment,
            env={"PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1", **java()},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert re.findall("^rows (.*)", done.stdout, re.MULTILINE) == [str(COUNT)]
    used = re.findall("^kshare (.*)", done.stdout, re.MULTILINE)
    assert len(used) == 2, done.stdout
    assert all("/work/app-" in file and "/environment/" in file for file in used), used
