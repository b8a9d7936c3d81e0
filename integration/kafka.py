"""A real Kafka 4.1.1 in KRaft mode, one JVM a broker, started and broken by the tests.

A broker that cannot start fails the test with its log; no test is skipped. A start takes 2.5 s on 2
cores, with an archive of classes that is made once, in about 8 s.
"""

import atexit
import base64
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from integration.certs import Certificates, make_certificates
from integration.jars import CACHE, fetched, java, locked
from integration.listeners import LISTENERS, USERS, jaas, sasl_settings, ssl_settings
from integration.ports import HOST, free_ports
from integration.topics import Topics

START_TIMEOUT_S = 180.0
SECURE_LISTENERS = tuple(LISTENERS)
SILENT_TIMEOUT_S = 60.0  # a JVM that has printed nothing by then is started again, once

_SETTINGS = {
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "2500",
    "broker.heartbeat.interval.ms": "300",
    "controlled.shutdown.enable": "true",
    "delete.topic.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    "log.retention.check.interval.ms": "1000",
    # Tests give records timestamps of years ago; a test of retention sets its topic's own.
    "log.retention.ms": "-1",
    # With 0, Kafka looks for what to delete every millisecond: 6 % of a core, for each broker.
    "log.segment.delete.delay.ms": "1000",
    "message.max.bytes": str(64 << 20),
    # Otherwise a controller without work writes a record every half a second.
    "metadata.max.idle.interval.ms": "0",
    "replica.fetch.max.bytes": str(64 << 20),
    "num.io.threads": "4",
    "num.network.threads": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "unclean.leader.election.enable": "false",
}


_QUICK = "-XX:TieredStopAtLevel=1"
_JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-Xlog:disable",
    "-Xlog:all=error",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


class BrokerError(RuntimeError):
    """A broker did not start or stop; the text ends with its log."""


class KafkaBroker(Topics):
    """One broker, its own controller unless ``controller`` names another (``node@host:port``).

    As a context manager it is started, then stopped, and its data removed.

    Args:
        listeners: Names from ``LISTENERS``; PLAINTEXT is always there.
        config: More broker properties; they win over those set here.
        data_dir: Where to keep the data. ``None``: a new temporary folder.
        heap_mib: The JVM's -Xmx.
        node_id: Unique in a cluster.
        cluster_id: A cluster's; ``None``: a new one.
        controller: The controller of the cluster; ``None``: this one.
        new_archive: Where its JVM leaves an archive of classes, when it stops. ``None``: it loads
            them from one.
        features: Levels of features, such as transaction.version; the others are the latest.
        classes: A folder with more classes, such as policies; ``None``: there are none.
        quick: For short jobs: its JVM's first compiler only. False: as a user would start it.
    """

    def __init__(
        self,
        listeners: Sequence[str] = ("PLAINTEXT",),
        *,
        config: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        heap_mib: int = 512,
        node_id: int = 1,
        cluster_id: str | None = None,
        controller: str | None = None,
        new_archive: Path | None = None,
        features: Mapping[str, int] | None = None,
        classes: Path | None = None,
        quick: bool = True,
    ) -> None:
        self.listeners = tuple(dict.fromkeys(("PLAINTEXT", *listeners)))
        self.config = dict(config or {})
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="kshare-kafka-"))
        self.heap_mib = heap_mib
        self.node_id = node_id
        self.cluster_id = cluster_id or _new_uuid()
        self.certificates: Certificates | None = None
        if any("SSL" in LISTENERS[name] for name in self.listeners):
            self.certificates = make_certificates(self.data_dir / "certs")
        names = self.listeners if controller else (*self.listeners, "CONTROLLER")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        own = f"{node_id}@{HOST}:{self.ports.get('CONTROLLER')}"
        self.controller = controller or own
        self._new_archive = new_archive
        self._features = dict(features or {})
        self._classes = classes
        self._quick = quick
        self.start_s: float | None = None  # how long the last start took
        self._process: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None  # of the last start, also for other processes

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs to use the broker; only this one ends it."""
        return self.__dict__ | {"_process": None}

    # What a client needs.

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the PLAINTEXT listener."""
        return self.servers("PLAINTEXT")

    def servers(self, listener: str) -> str:
        """``host:port`` of a listener."""
        return f"{HOST}:{self.ports[listener]}"

    def client_options(
        self, listener: str = "PLAINTEXT", mechanism: str | None = None, user: str = "reader"
    ) -> dict[str, str]:
        """Return Java-style ``kafka.*`` source options to connect to a listener with."""
        protocol = LISTENERS[listener]
        options = {
            "kafka.bootstrap.servers": self.servers(listener),
            "kafka.security.protocol": protocol,
        }
        if "SSL" in protocol:
            assert self.certificates
            options["kafka.ssl.truststore.type"] = "PEM"
            options["kafka.ssl.truststore.location"] = str(self.certificates.ca)
        if protocol.startswith("SASL"):
            options["kafka.sasl.mechanism"] = mechanism or "PLAIN"
            options["kafka.sasl.jaas.config"] = jaas(mechanism or "PLAIN", user, USERS[user])
        return options

    # Its life.

    @property
    def log_file(self) -> Path:
        """What the broker's JVM printed, over all its starts."""
        return self.data_dir / "broker.log"

    @property
    def running(self) -> bool:
        """Whether the broker's JVM runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the broker's JVM."""
        assert self._process, "the broker was never started"
        return self._process.pid

    def start(self) -> Self:
        """Start on what is in the data folder, on the same ports; return when it serves.

        Raises:
            BrokerError: It ended, or does not serve within ``START_TIMEOUT_S``.
        """
        self.launch()
        if self._is_silent():
            self.kill9()
            self.launch()
        return self.wait_until_started()

    def launch(self) -> None:
        """Start the JVM, and do not wait for it."""
        assert not self.running, "the broker runs already"
        began = time.monotonic()
        self._format()
        self._log_from = self.log_file.stat().st_size
        flags, archive = [f"-Xmx{self.heap_mib}m", "-Xms64m"], None
        if self._quick:
            flags.append(_QUICK)
        if self._new_archive:
            flags.append(f"-XX:ArchiveClassesAtExit={self._new_archive}")
        else:
            archive = class_archive()
        command = [*_jvm(*flags, archive=archive), "kafka.Kafka", str(self._properties)]
        if self._classes is not None:  # at the end: the archive's class path is how it begins
            command[command.index("-cp") + 1] += f"{os.pathsep}{self._classes}"
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data_dir,
                start_new_session=True,  # Ctrl-C is pytest's, which then stops the broker
            )
        self._pid = self._process.pid
        atexit.register(self.kill9)
        self._began = began

    def wait_until_started(self) -> Self:
        """Wait for a launched broker (see ``start``), also for another process's."""
        deadline = self._began + START_TIMEOUT_S
        while b"Kafka Server started" not in self._log_since_start():
            if self._process and self._process.poll() is not None:
                raise BrokerError(f"broker ended with {self._process.returncode}:\n{self.log()}")
            if self._process is None and not _runs(self._pid):
                raise BrokerError(f"broker ended:\n{self.log()}")
            if time.monotonic() > deadline:
                if self._process:
                    self._print_threads()
                    self.kill9()
                raise BrokerError(f"broker not up in {START_TIMEOUT_S:.0f} s:\n{self.log(400)}")
            time.sleep(0.02)
        if any(name.startswith("SASL") for name in self.listeners):
            self._create_scram_users()
        self.wait_for_leaders()
        self.start_s = time.monotonic() - self._began
        return self

    def stop(self) -> None:
        """Stop cleanly (SIGTERM)."""
        if not self._process:
            return
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise BrokerError(f"broker did not stop:\n{self.log()}") from None
        atexit.unregister(self.kill9)

    def kill9(self) -> None:
        """Kill -9."""
        if self._process:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
        atexit.unregister(self.kill9)

    def restart(self) -> Self:
        """Stop cleanly, and start on the same data and ports."""
        self.stop()
        return self.start()

    def freeze(self) -> None:
        """Stop all its threads: connections stay open, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume after ``freeze``."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop it, and remove its data."""
        if self.running:
            os.kill(self.pid, signal.SIGCONT)
            self.stop()
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def log(self, lines: int = 60) -> str:
        """Return the end of the broker's log, without the long list of its settings."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        kept = [line for line in text.splitlines() if not re.match(r"\t[a-z.]+[\w.]* = ", line)]
        return "\n".join(kept[-lines:])

    # Inside.

    @property
    def _properties(self) -> Path:
        return self.data_dir / "server.properties"

    def _is_silent(self) -> bool:
        assert self._process
        deadline = time.monotonic() + SILENT_TIMEOUT_S
        while not self._log_since_start() and self._process.poll() is None:
            if time.monotonic() > deadline:
                self._print_threads()
                return True
            time.sleep(0.02)
        return False

    def _print_threads(self) -> None:
        """Let the JVM print where its threads stand, into its log."""
        assert self._process
        self._process.send_signal(signal.SIGQUIT)
        time.sleep(1)

    def _log_since_start(self) -> bytes:
        with self.log_file.open("rb") as log:
            log.seek(self._log_from)
            return log.read()

    def _format(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.log_file.touch()
        settings = self._settings()
        self._properties.write_text("".join(f"{k}={_escaped(v)}\n" for k, v in settings.items()))
        if (self.data_dir / "log" / "meta.properties").exists():
            return
        if self._new_archive or self._features:
            self._format_by_tool()
        else:
            self._format_as(_bootstrap(class_archive()))

    def _format_as(self, bootstrap: Path) -> None:
        """Write what Kafka's tool would write with its default features, as that takes a second."""
        folder = self.data_dir / "log"
        folder.mkdir()
        shutil.copy(bootstrap, folder / "bootstrap.checkpoint")
        ids = {"cluster.id": self.cluster_id, "directory.id": _new_uuid(), "node.id": self.node_id}
        lines = [f"{name}={value}\n" for name, value in {**ids, "version": 1}.items()]
        (folder / "meta.properties").write_text("".join(lines))

    def _format_by_tool(self) -> None:
        archive = None if self._new_archive else class_archive()
        command = _jvm("-Xmx128m", _QUICK, archive=archive)
        command += ["kafka.tools.StorageTool", "format", "-t", self.cluster_id]
        command += ["-c", str(self._properties)]
        for name, level in self._features.items():
            command += ["--feature", f"{name}={level}"]
        with self.log_file.open("ab") as log:
            done = subprocess.run(command, stdout=log, stderr=log, check=False)
        if done.returncode:
            raise BrokerError(f"cannot format the broker's data folder:\n{self.log()}")

    def _settings(self) -> dict[str, str]:
        urls = [f"{name}://{HOST}:{port}" for name, port in self.ports.items()]
        protocols = LISTENERS | {"CONTROLLER": "PLAINTEXT"}
        own_controller = "CONTROLLER" in self.ports
        settings = _SETTINGS | {
            "node.id": str(self.node_id),
            "process.roles": "broker,controller" if own_controller else "broker",
            "controller.quorum.voters": self.controller,
            "listeners": ",".join(urls),
            "advertised.listeners": ",".join(url for url in urls if "CONTROLLER" not in url),
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            "log.dirs": str(self.data_dir / "log"),
        }
        for name in self.listeners:
            if "SSL" in LISTENERS[name]:
                assert self.certificates
                settings |= ssl_settings(name, self.certificates)
            if LISTENERS[name].startswith("SASL"):
                settings |= sasl_settings(name)
        if len(self.listeners) > 1:
            settings |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "true",
                "super.users": "User:ANONYMOUS",
            }
        return settings | self.config

    def _create_scram_users(self) -> None:
        # One request a mechanism: Kafka refuses two changes of one user in a request.
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            changes: list[UserScramCredentialAlteration] = [
                UserScramCredentialUpsertion(user, info, password.encode())
                for user, password in USERS.items()
            ]
            for future in self.admin.alter_user_scram_credentials(changes).values():
                future.result(30)


def _runs(pid: int | None) -> bool:
    """Return whether a process runs, which may be another one's; one that has ended does not."""
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")


def _new_uuid() -> str:
    """A cluster's id. One that begins with a hyphen would be an option to kafka-storage."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    return text if text[0] != "-" else _new_uuid()


def kafka_tool(main: str) -> list[str]:
    """Return the command of one of Kafka's own tools, to be followed by its arguments."""
    return [*_jvm("-Xmx128m", _QUICK, archive=class_archive()), main]


def _jvm(*flags: str, archive: Path | None) -> list[str]:
    shared = [] if archive is None else [f"-XX:SharedArchiveFile={archive}"]
    return [java(), *flags, *_JVM_FLAGS, *shared, "-cp", class_path()]


def class_path() -> str:
    return os.pathsep.join(str(path) for path in fetched("broker"))


def class_archive() -> Path:
    """Return the archive from which brokers load their classes, made if it is missing.

    Without it, a start takes twice as long.
    """
    # The JVM refuses an archive of another JVM or class path by itself; the name avoids the churn.
    tag = hashlib.sha256(f"{Path(java()).resolve()}{class_path()}".encode()).hexdigest()[:12]
    archive = CACHE / f"kafka-{tag}.jsa"
    with locked(CACHE / "kafka-archive.lock"):
        if not (archive.exists() and _bootstrap(archive).exists()):
            _make_archive(archive)
    return archive


def _bootstrap(archive: Path) -> Path:
    """Return the file in which a new broker finds its features, as Kafka's tool wrote it once."""
    return archive.with_name(f"{archive.stem}.bootstrap.checkpoint")


def _make_archive(archive: Path) -> None:
    """Run a broker for a moment that notes which classes it loads."""
    new = archive.with_name(f"{archive.name}.{os.getpid()}")
    with KafkaBroker(new_archive=new) as broker:
        topic = broker.create_topic()
        broker.produce(topic, [("key", "value")])
        broker.produce_transaction(topic, [("key", "value")])
        shutil.copy(broker.data_dir / "log" / "bootstrap.checkpoint", _bootstrap(archive))
    new.replace(archive)
