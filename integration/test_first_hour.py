"""The first hour of a newcomer: the blocks of README and getting-started, as they stand, in order.

In a new clone and a new environment, from the clone's folder. What is replaced is said here: the
port, which may be taken, and the folder of checkpoints. What takes long and is on both pages runs
once, and of ``make test`` only the plan is made: it has a run of its own.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from integration.ports import free_ports
from integration.terminal import Terminal
from tests.support.clock import until
from tests.support.documents import Fence, documents

pytestmark = pytest.mark.timeout(2400)  # three minutes of CPU time, on a machine that may be busy

ROOT = Path(__file__).resolve().parent.parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
OF_USERS = ("HOME", "JAVA_HOME", "LANG", "USER")
ONCE = {"pip install .", "kshare demo"}
PLANNED = {"make test": "make --dry-run test > /dev/null"}


def fences(name: str) -> list[Fence]:
    return next(document for document in documents() if document.path == name).fences


def commands(text: str) -> list[str]:
    """The lines of a block of a shell, without what stands behind them for readers."""
    return [line.partition(" #")[0].strip() for line in text.splitlines()]


@dataclass
class Newcomer:
    """A clone, an environment, and the terminals in which both pages are followed."""

    folder: Path
    clone: Path
    environment: dict[str, str]
    replacing: dict[str, str]
    stack: ExitStack
    ran: dict[str, str] = field(default_factory=dict)

    def open(self) -> Terminal:
        return self.stack.enter_context(Terminal(self.clone, self.environment, self.replacing))

    def run(self, terminal: Terminal, text: str) -> str:
        """Return what a block prints."""
        said = ""
        for command in commands(text):
            shown = self.ran.get(command) or terminal.run(PLANNED.get(command, command))
            if command in ONCE:
                self.ran[command] = shown
            said += shown
        return said


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    folder = tmp_path_factory.mktemp("newcomer")
    clone = folder / "kshare"
    # With what is changed and not committed: a fault is seen before it is.
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    changed = subprocess.run(
        ["git", "diff", "--binary", "HEAD"], cwd=ROOT, check=True, capture_output=True
    )
    if changed.stdout:
        subprocess.run(["git", "apply", "-"], cwd=clone, check=True, input=changed.stdout)
    (port,) = free_ports(1)
    python = Path(sys.base_prefix) / "bin"
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    users = {name: os.environ[name] for name in OF_USERS if name in os.environ}
    environment = {
        **pip,
        **users,
        "PATH": f"{python}:{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": QUICK,
    }
    replacing = {
        "localhost:9092": f"localhost:{port}",
        "kshare broker\n": f"kshare broker --port {port}\n",
        "/tmp/": f"{folder}/",
    }
    with ExitStack() as stack:
        yield Newcomer(folder, clone, environment, replacing, stack)


@pytest.fixture(scope="module")
def shell(newcomer: Newcomer) -> Terminal:
    """The first terminal, with the environment of the page's first block."""
    shell = newcomer.open()
    install = next(each for each in fences("docs/getting-started.md") if each.language == "sh")
    newcomer.run(shell, install.text)
    return shell


@pytest.fixture(scope="module")
def broker(newcomer: Newcomer, shell: Terminal) -> tuple[Terminal, str]:
    """The terminal of ``kshare broker``, and what it said at first."""
    terminal = newcomer.open()
    terminal.run(". .venv/bin/activate")
    return terminal, terminal.start("kshare broker", until="Ctrl+C ends it.")


def pattern(line: str) -> str:
    """A line of output that a page shows, as a pattern: numbers, and spaces, may be others."""
    words = (re.sub(r"\d[\d,.:T+-]*", "\0", word) for word in line.split())
    return r"[ ]*".join(re.escape(word).replace("\0", r"[\d,.:T+-]+") for word in words)


def check(shown: Fence, said: str) -> None:
    """Fail unless a page's output is what was printed, in its order."""
    at = 0
    for line in shown.text.splitlines():
        found = re.compile(pattern(line)).search(said, at)
        assert found, f"line {shown.line}: {line!r} is not in\n{said}"
        at = found.end()


def test_the_readme(newcomer: Newcomer, shell: Terminal, broker: object) -> None:
    said = {}
    # The environment of make is the same one: it would be completed, not made.
    first, *others = fences("README.md")
    assert commands(first.text) == ["make demo", "make test"]
    for fence in [*others, first]:
        if fence.language == "sh":
            said[fence.line] = newcomer.run(shell, fence.text)
        elif fence.language == "python" and "SparkSession" in fence.text:
            (newcomer.clone / "job.py").write_text(replaced(newcomer, fence.text))
            said[fence.line] = shell.run("python job.py")
    shell.run("kshare unpark --bootstrap-servers localhost:9092 --topic orders customer-7")
    everything = "\n".join(said.values())
    assert everything.count("ORDER OK: 200,000 records of 1,000 keys") == 2
    assert "all 4 would have stood at" in everything
    for wanted in ("|customer-", "orders customer-7: parked", "orders-0: stable 20,"):
        assert wanted in everything, everything
    for unwanted in ("log4j", "WARN NativeCodeLoader", "DescribeConfigs"):
        assert unwanted not in said[first.line], said[first.line]


def replaced(newcomer: Newcomer, text: str) -> str:
    for old, new in newcomer.replacing.items():
        text = text.replace(old, new)
    return text


def test_getting_started(newcomer: Newcomer, shell: Terminal, broker: tuple[Terminal, str]) -> None:
    terminal, said = broker
    python = newcomer.open()
    for fence in fences("docs/getting-started.md"):
        if fence.language == "text":
            check(fence, said)
        elif fence.language == "python":
            if "PYSPARK_PYTHON" not in fence.text:  # which is for a notebook
                said = python.paste(fence.text.rstrip())
        elif commands(fence.text)[-1] == "kshare broker":
            said = broker[1]
        elif commands(fence.text)[-1] == "python":
            for line in commands(fence.text)[:-1]:
                python.run(line)
            python.start_python()
        elif "slow-checkpoint" in fence.text:
            until((newcomer.folder / "slow-checkpoint/commits/0").exists, 600)
            said = newcomer.run(shell, fence.text)
            assert "front" in said, said  # the ranges are at offsets of their own
        else:
            said = newcomer.run(shell, fence.text)
    assert terminal.interrupt().strip() == "The broker has ended, and its records with it."
