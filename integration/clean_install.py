"""What ``make dist`` has built, installed as a user would: a check of releases.

``python -m integration.clean_install DIST`` makes a virtual environment that has nothing but the
wheel and what it asks for, away from the clone, and runs there what the README begins with: the
doctor, and the ten lines. Needs a package index.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from kshare._version import __version__
from kshare.testing import FakeCluster
from tests.docs.test_examples import examples

COUNT = 20


def main(dist: Path) -> None:
    """Install the wheel, and run it."""
    (wheel,) = dist.glob(f"kshare-{__version__}-*.whl")
    (source,) = dist.glob(f"kshare-{__version__}.tar.gz")
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes; {source.name}: {source.stat().st_size:,}")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "env", with_pip=True)
        run(home, "python", "-m", "pip", "install", "--quiet", str(wheel.resolve()))
        assert f"kshare {__version__}\n" in run(home, "kshare", "--version")
        print(run(home, "kshare", "doctor"))
        with FakeCluster(topics={"orders": 1}) as cluster:
            cluster.produce("orders", [(b"customer-%d" % (n % 7), b"v") for n in range(COUNT)])
            (lines,) = (e.text for e in examples("README.md") if "SparkSession" in e.text)
            job = lines.replace("localhost:9092", cluster.bootstrap_servers)
            (home / "job.py").write_text(job.replace("/tmp/orders-", f"{home}/orders-"))
            shown = run(home, "python", "job.py")
        assert shown.count("|customer-") == COUNT, shown
        print(f"the README's ten lines print {COUNT} rows")


def run(home: Path, program: str, *arguments: str) -> str:
    """Run a program of the environment, in an empty folder; return what it prints."""
    scripts = home / "env" / "bin"
    clean = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        [scripts / program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        env={
            **clean,
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": str(scripts / "kshare-python"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    if done.returncode:
        sys.exit(f"{program} {' '.join(arguments)}:\n{done.stdout}\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
