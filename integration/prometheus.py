"""A real Prometheus, with promtool: what is on the PATH, or Debian's package.

The package is fetched with apt-get and unpacked into ``.cache``; that needs no root, and installs
nothing. ``python -m integration.prepare`` does it before the tests.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Self

import yaml

from integration.jars import ATTEMPTS, CACHE, locked
from integration.ports import free_ports

HOME = CACHE / "prometheus"
PROGRAMS = ("prometheus", "promtool")
START_TIMEOUT_S = 60.0
_MISSING = (
    "tests of alerts and of the dashboard need prometheus and promtool: put them on the PATH "
    "(`apt-get install prometheus`, `brew install prometheus`). Debian's package could not be "
    "fetched:\n"
)


@cache
def program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``; both are fetched if they are missing.

    RuntimeError: they cannot be had; with what apt-get said.
    """
    found = shutil.which(name)
    if found is not None:
        return found
    with locked(CACHE / "prometheus.lock"):
        if not all((HOME / "usr/bin" / each).exists() for each in PROGRAMS):
            _fetch()
    return str(HOME / "usr/bin" / name)


def _fetch() -> None:
    """Fetch the package as any user; where the machine has no lists of packages, with own ones."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise RuntimeError(f"{_MISSING}there is no apt-get")
    said = ""
    for attempt in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            options = _own_lists(Path(folder)) if attempt else []
            steps = [["apt-get", *options, "update"]] if attempt else []
            steps.append(["apt-get", *options, "download", "prometheus"])
            for step in steps:
                done = subprocess.run(
                    step, cwd=folder, check=False, capture_output=True, text=True, timeout=300
                )
                said += done.stdout + done.stderr
            packages = list(Path(folder).glob("prometheus_*.deb"))
            if packages:
                unpacked = Path(folder) / "unpacked"
                subprocess.run(["dpkg-deb", "-x", packages[0], unpacked], check=True, timeout=300)
                shutil.rmtree(HOME, ignore_errors=True)
                unpacked.rename(HOME)
                return
    raise RuntimeError(f"{_MISSING}{said[-2000:]}")


def _own_lists(folder: Path) -> list[str]:
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True)
    return [
        *("-o", f"Dir::State::Lists={folder}/lists"),
        *("-o", f"Dir::Cache={folder}"),
        *("-o", "APT::Sandbox::User=root"),  # the lists are this user's
        *("-o", "Debug::NoLocking=true"),
    ]


class Prometheus:
    """A Prometheus that scrapes every second; a context manager.

    Args:
        targets: ``host:port`` by the name of the job.
        rules: A file of rules.
    """

    def __init__(self, targets: Mapping[str, list[str]], rules: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kshare-prometheus-")
        (self.port,) = free_ports(1)
        scrapes = [
            {"job_name": job, "static_configs": [{"targets": places}]}
            for job, places in targets.items()
        ]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": scrapes,
        }
        home = Path(self._folder.name)
        (home / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = (home / "log").open("w+")
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={home}/prometheus.yml",
                f"--storage.tsdb.path={home}/data",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GOMAXPROCS": "1"},
        )

    def get(self, path: str, **given: str) -> Any:
        """Ask the API under ``/api/v1/``; return the data of its answer."""
        query = urllib.parse.urlencode(given)
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{given}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[Any]:
        """Return the vector that an expression has now."""
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.get("status/runtimeinfo")
            except (OSError, ValueError):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._log.seek(0)
                    said = self._log.read()
                    self.close()
                    raise RuntimeError(f"Prometheus does not start:\n{said[-4000:]}") from None
                time.sleep(0.1)
            else:
                return self

    def close(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
        self._folder.cleanup()

    def __exit__(self, *_: object) -> None:
        self.close()
