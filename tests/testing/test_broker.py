"""What the integration tests' brokers say to those that did not start them."""

import os
import pickle
import subprocess
import time
from pathlib import Path

import pytest

from integration import kafka
from integration.kafka import START_TIMEOUT_S, BrokerError, KafkaBroker


def test_a_worker_does_not_wait_for_a_shared_broker_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "free_ports", range)  # nothing listens
    broker = KafkaBroker(data_dir=tmp_path)
    broker.log_file.write_text("the port is in use")
    with subprocess.Popen(["true"]) as jvm:
        os.waitid(os.P_PID, jvm.pid, os.WEXITED | os.WNOWAIT)  # ended, and its parent has not asked
        broker._process, broker._pid = jvm, jvm.pid
        broker._log_from, broker._began = 0, time.monotonic() - START_TIMEOUT_S
        of_worker: KafkaBroker = pickle.loads(pickle.dumps(broker))
        with pytest.raises(BrokerError, match=r"broker ended:\nthe port is in use"):
            of_worker.wait_until_started()
