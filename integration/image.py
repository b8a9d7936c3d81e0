"""The commands of ``docker/Dockerfile``, run in a clean virtual environment, without a container.

``python -m integration.image`` copies what ``.dockerignore`` leaves, runs each RUN with the paths
of the image moved into a temporary folder, and then its doctor. ``apt-get`` only says
what it would install. Needs a package index.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOVED = re.compile(r"(?<![\w.])/(src|wheels|opt|checkpoints)\b")


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, each with its arguments on one line."""
    text = (ROOT / "docker/Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return [(name, " ".join(arguments.split())) for name, arguments in lines]


def main() -> None:
    """Run them."""
    with tempfile.TemporaryDirectory(prefix="kshare-image-") as folder:
        root = Path(folder)
        venv.create(root / "env", with_pip=True)
        (root / "opt").mkdir()
        for name, arguments in instructions():
            if name == "COPY":
                copy(root, *arguments.split()[-2:])
            elif name == "RUN":  # what is mounted is there already
                run(root, re.sub(r"^--mount=\S+ ", "", arguments))
        assert (root / "opt/spark/bin/spark-class").exists()
        assert "green  compiled code" in run(root, f"{root}/opt/entrypoint.sh kshare doctor")
    print("all commands of the Dockerfile run")


def copy(root: Path, source: str, target: str) -> None:
    """Do what COPY does."""
    place = root / target.removeprefix("/")
    if source == ".":
        lines = (ROOT / ".dockerignore").read_text().split()
        for kept in [line[1:] for line in lines if line.startswith("!")]:
            copy(root, kept, f"{target}/{kept}")
    elif (ROOT / source).is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / source, place, ignore=ignored)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, place)


def run(root: Path, command: str) -> str:
    """Run a command as the image's builder would; return what it prints."""
    command = MOVED.sub(lambda found: f"{root}/{found[1]}", command)
    command = command.replace(f"{root}{root}", str(root))
    if command.startswith("apt-get"):
        (packages,) = re.findall(r"--no-install-recommends ([\w. -]+?) &&", command)
        command = f"apt-get install --simulate --no-install-recommends {packages}"
    print(f"$ {command.replace(str(root), '')}", flush=True)
    scripts = root / "env/bin"
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
        env={
            **kept,
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "SPARK_HOME": f"{root}/opt/spark",
            "PYSPARK_PYTHON": str(scripts / "kshare-python"),
        },
    )
    if done.returncode:
        sys.exit(f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
