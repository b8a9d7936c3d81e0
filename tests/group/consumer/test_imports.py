"""What a consumer's process imports: each import is memory that it keeps."""

import json
import subprocess
import sys

from kshare.testing import FakeCluster, Record

READ = """
import json, sys
from types import SimpleNamespace
sys.modules["kshare.testing"] = SimpleNamespace(FakeCluster=None)  # it imports more
import kshare.group.consumer.transaction
from tests.support.fake_session import FakeSessions, fake_consumers
cluster = SimpleNamespace(bootstrap_servers={servers!r})
with fake_consumers(cluster, FakeSessions()) as consumers:
    consumer = consumers(acknowledgement__mode="explicit")
    consumer.assign({{("orders", 0): []}})
    messages = []
    while len(messages) < 20:
        messages += consumer.consume(20, timeout=1.0)
    assert messages[0].key() == b"k" and messages[0].headers() == [("kind", b"new")]
    consumer.acknowledge(messages[0])
print(json.dumps(list(sys.modules)))
"""


def test_a_consumer_does_without_what_planners_and_sinks_need() -> None:
    """``pyarrow.compute`` alone takes 9 MB."""
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [Record(b"k", b"v", headers=(("kind", b"new"),))] * 20)
        script = READ.format(servers=cluster.bootstrap_servers)
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    unwanted = {"llvmlite", "numba", "pandas", "pyarrow.compute", "pydantic", "pyspark", "scipy"}
    assert sorted(unwanted & imported) == []
