"""A processor on a real broker, killed with retries and dead letters under way."""

import asyncio
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from integration.kafka import KafkaBroker
from integration.lines import whole_lines
from integration.members import eventually
from integration.processes import PythonProcess
from integration.transactions import read_to_end
from kshare.cli import main as kshare_command
from kshare.core.progress import TopicPartition as Place
from kshare.dead_letters.writer import HEADERS
from kshare.group import KeySharedConsumer
from kshare.group.config.consumer_config import consumer_config
from kshare.group.consumer.transaction import Transaction
from kshare.group.log.retry_log import RetryLog
from kshare.group.log.topic import log_table
from kshare.group.tools.offsets import list_offsets
from kshare.kafka.parked_keys import ParkedKeys
from kshare.processing import DeadLetter, Processor, Record, Retry, replay
from kshare.processing.runner import Runner
from tests.support import shown

KEYS = [f"k{number}" for number in range(20)]
EACH = 60


def test_what_was_handled_and_then_the_dead_letters_are_what_was_produced(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """Through kill -9, for each key and in order; what was handled twice counts once."""
    letters = f"{topic}-dlq"
    broker.create_topic(letters)
    broker.produce(topic, [(key, str(at)) for at in range(EACH) for key in KEYS])
    file = tmp_path / "handled"
    file.touch()
    arguments = [broker.bootstrap_servers, topic, letters, str(file)]

    def are_kept(failures: int) -> bool:
        """Whether the log has so many of a record; with the third one, it goes to the letters."""
        is_over = "failed k3 203 3" in file.read_text()
        return is_over or failures_of(broker, topic, 203) >= failures

    killed = []
    for failures in (1, 2, 3):
        process = PythonProcess("integration.processor_process", arguments)
        if failures < 3:
            eventually(lambda n=failures: are_kept(n))  # type: ignore[misc]
            process.kill()
            process.wait()
            shown.killed("processor")
            killed.append((failures, len(attempts_at(file, "k3"))))
    dead = 2 * (EACH - 10)
    eventually(lambda: len(set(read(broker, letters))) >= dead)
    eventually(lambda: len(handled(file)) >= EACH * len(KEYS) - dead)
    process.terminate()
    assert process.wait() == 0
    check_order([*handled(file), *read(broker, letters)], EACH * len(KEYS))
    attempts = attempts_at(file, "k3")  # of one record, by three processes
    assert attempts == sorted(attempts)
    assert set(attempts) == {1, 2, 3}
    for kept, before in killed:  # what the log has is not tried again; it may not have the last one
        assert all(attempt > kept for attempt in attempts[before:])


def attempts_at(file: Path, key: str) -> list[int]:
    """The attempts at a key's records that have failed, in order."""
    lines = [line.split() for line in whole_lines(file) if "failed" in line]
    return [int(attempt) for _, of, _, attempt in lines if of == key]


def failures_of(broker: KafkaBroker, topic: str, offset: int) -> int:
    """How many failures of a record the log of the group ``topic`` has: they are written behind."""
    config = consumer_config({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    with closing(RetryLog(log_table(config.kafka, config.log_topic, topic), topic)) as log:
        known = log.read().attempts.get((Place(topic, 0), offset))
    return 0 if known is None else known.failures


def handled(file: Path) -> list[tuple[str, int]]:
    """Keys and offsets that were handled, each at its first time."""
    lines = [line.split() for line in whole_lines(file)]
    return list(dict.fromkeys((key, int(at)) for what, key, at, _ in lines if what == "handled"))


def read(broker: KafkaBroker, topic: str) -> list[tuple[str, int]]:
    """Keys and original offsets of the dead letters, in the order of the log."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found, end = list[tuple[str, int]](), broker.latest(topic)
    while len(found) < end:
        for message in consumer.consume(end - len(found), 1.0):
            headers = dict(message.headers() or ())
            offset = headers["__connect.errors.offset"]
            key = message.key()
            assert isinstance(offset, bytes)
            assert isinstance(key, bytes)
            found.append((key.decode(), int(offset)))
    consumer.close()
    return found


def check_order(found: Iterable[tuple[str, int]], total: int) -> None:
    """Each key's records are there, in their order; what was handled twice counts once."""
    by_key = defaultdict[str, list[int]](list)
    for key, offset in dict.fromkeys(found):
        by_key[key].append(offset)
    for number, key in enumerate(KEYS):
        wanted, had = list(range(number, total, len(KEYS))), by_key[key]
        shown.outputs(len(had), set(wanted) - set(had), (), [key] if had != sorted(had) else ())
        assert had == wanted, key


def test_a_member_joins_while_retries_wait(broker: KafkaBroker, topic: str, tmp_path: Path) -> None:
    """No retry is lost, or overtaken; what waits goes to the new owner."""
    letters = f"{topic}-dlq"
    broker.create_topic(letters)
    broker.produce(topic, [(key, str(at)) for at in range(20) for key in KEYS])
    file = tmp_path / "handled"
    file.touch()
    arguments = [broker.bootstrap_servers, topic, letters, str(file)]
    first = PythonProcess("integration.processor_process", arguments)
    eventually(lambda: "failed k13 213 1" in file.read_text())
    second = PythonProcess("integration.processor_process", arguments)
    eventually(lambda: len(set(read(broker, letters))) == 20)
    broker.produce(topic, [(key, "5") for key in KEYS])
    total = 21 * len(KEYS)
    eventually(lambda: len(set(read(broker, letters))) == 22)
    eventually(lambda: len(handled(file)) == total - 22)
    for process in (first, second):
        process.terminate()
        assert process.wait() == 0
    check_order([*handled(file), *read(broker, letters)], total)


@pytest.mark.long
def test_a_dead_letter_topic_that_is_missing_or_too_small_leaves_its_records_pending(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    letters, file, told = f"{topic}-dlq", tmp_path / "handled", tmp_path / "told"
    broker.produce(topic, [(key, str(at)) for at in range(12) for key in KEYS])
    file.touch()
    told.touch()
    arguments = [broker.bootstrap_servers, topic, letters, str(file)]

    def refused(why: str) -> PythonProcess:
        process = PythonProcess("integration.processor_process", arguments, stderr=told)
        eventually(lambda: why in told.read_text())
        return process

    process = refused(f"topic {letters}, for dead letters, does not exist on 127")
    assert f"{topic}-0 offset 203> stays pending, and its key waits" in told.read_text()
    process.kill()  # without a last commit
    process.wait()
    broker.create_topic(letters, config={"max.message.bytes": 100})
    process = refused(f"topic {letters} takes no dead letter of {topic}-0@203, not even one of")
    assert broker.latest(letters) == 0
    entry = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, letters, incremental_configs=[entry])
    broker.admin.incremental_alter_configs([resource])[resource].result(30)
    total = 12 * len(KEYS)
    eventually(lambda: len(set(read(broker, letters))) == 4)
    eventually(lambda: len(handled(file)) == total - 4)
    process.terminate()
    assert process.wait() == 0
    check_order([*handled(file), *read(broker, letters)], total)
    failed = [line for line in whole_lines(file) if line.startswith("failed k3 203")]
    assert len(failed) <= 4  # the second process only tries what the crash has forgotten


def test_a_dead_letter_topic_that_may_not_be_written_leaves_its_records_pending(
    secure_broker: KafkaBroker, tmp_path: Path
) -> None:
    """The warning names the topic and the right; with the right, it goes on."""
    topic, letters = secure_broker.create_topic(), secure_broker.create_topic()
    file, told = tmp_path / "handled", tmp_path / "told"
    file.touch()
    told.touch()
    secure_broker.produce(topic, [(key, str(at)) for at in range(12) for key in KEYS])
    secure_broker.deny(letters, operation=AclOperation.WRITE)
    options = secure_broker.client_options("SASL_PLAINTEXT", user="stranger")
    config = {name.removeprefix("kafka."): value for name, value in options.items()}
    arguments = [config["bootstrap.servers"], topic, letters, str(file), json.dumps(config)]
    process = PythonProcess("integration.processor_process", arguments, stderr=told)
    denied = f"not authorized to write a dead letter to topic {letters}"
    eventually(lambda: denied in told.read_text())
    assert f"{topic}-0 offset 203> stays pending, and its key waits" in told.read_text()
    assert f"grant the principal Write on topic {letters}" in told.read_text()
    total = 12 * len(KEYS)
    eventually(lambda: len(handled(file)) == total - 4)  # all other keys go on
    process.terminate()
    assert process.wait() == 0
    assert secure_broker.latest(letters) == 0
    given = {"bootstrap.servers": secure_broker.bootstrap_servers}
    assert list_offsets(topic, given)[Place(topic, 0)].offset == 203
    secure_broker.allow_again(letters, AclOperation.WRITE)
    process = PythonProcess("integration.processor_process", arguments)
    eventually(lambda: len(set(read(secure_broker, letters))) == 4)
    process.terminate()
    assert process.wait() == 0
    check_order([*handled(file), *read(secure_broker, letters)], total)


def test_sigterm_with_a_thousand_in_flight(broker: KafkaBroker, topic: str, tmp_path: Path) -> None:
    """They are drained within drain_timeout, the rest is pending."""
    broker.produce(topic, [(f"k{at}", str(at)) for at in range(1000)])
    file = tmp_path / "handled"
    file.touch()
    arguments = [broker.bootstrap_servers, topic, "drain", str(file)]
    process = PythonProcess("integration.processor_process", arguments)
    eventually(lambda: file.read_text().count("started") == 1000)
    process.terminate()
    began = time.monotonic()
    assert process.wait() == 0
    assert 4.5 < time.monotonic() - began < 120
    hung = [at for at in range(10, 1000) if at % 10 == 3]
    assert sorted(at for _, at in handled(file)) == [at for at in range(1000) if at not in hung]
    (tmp_path / "handled.healed").touch()
    file.write_text("")
    process = PythonProcess("integration.processor_process", arguments)
    eventually(lambda: sorted(at for _, at in handled(file)) == hung)
    time.sleep(0.5)
    process.terminate()
    assert process.wait() == 0
    assert sorted(at for _, at in handled(file)) == hung


def test_nothing_is_begun_while_the_brokers_do_not_answer_for_longer_than_a_session(
    tmp_path: Path,
) -> None:
    """Of 2,000 records that are held, as others might have them by then; afterwards it goes on."""
    file = tmp_path / "handled"
    file.touch()

    def begun() -> int:
        return file.read_text().count("started")

    with KafkaBroker() as broker:
        topic = broker.create_topic()
        broker.produce(topic, [(f"k{at % 20}", "1") for at in range(2_000)])
        arguments = [broker.bootstrap_servers, topic, "drain", str(file)]
        process = PythonProcess("integration.processor_process", arguments)
        eventually(lambda: begun() > 40)
        broker.freeze()
        try:
            time.sleep(8)  # the session lasts 6 s
            until_then = begun()
            time.sleep(3)
            assert begun() == until_then < 2_000
        finally:
            broker.thaw()
        eventually(lambda: begun() > until_then + 100)
        process.terminate()
        assert process.wait() == 0
    found = handled(file)
    for key in {key for key, _ in found}:
        offsets = [at for each, at in found if each == key]
        assert offsets == sorted(offsets)


def test_released_records_come_again_in_order_and_are_counted_through_kill_9(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    broker.produce(topic, [(key, str(at)) for at in range(10) for key in KEYS])
    file = tmp_path / "handled"
    file.touch()
    arguments = [broker.bootstrap_servers, topic, str(file)]
    first = PythonProcess("integration.releasing_process", [*arguments, "released k3 103 2"])
    eventually(lambda: failures_of(broker, topic, 103) == 2)
    first.kill()
    first.wait()
    second = PythonProcess("integration.releasing_process", arguments)
    eventually(lambda: len(handled(file)) >= 200)
    second.kill()
    second.wait()
    check_order(handled(file), 200)
    lines = [line.split() for line in whole_lines(file)]
    counts = [int(count) for what, _, at, count in lines if what == "released" and at == "103"]
    assert counts == [1, 2, 3]  # by two processes


def test_a_key_goes_on_when_it_is_unparked_in_the_process_that_parked_it(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    broker.produce(topic, [(key, str(at)) for at in range(20) for key in KEYS])
    file = tmp_path / "handled"
    file.touch()
    arguments = [broker.bootstrap_servers, topic, "park", str(file)]
    process = PythonProcess("integration.processor_process", arguments)
    total = 20 * len(KEYS)
    eventually(lambda: len(handled(file)) == total - 20)
    where = ["--bootstrap-servers", broker.bootstrap_servers]
    parked = [*where, "--topic", topic]
    kafka = consumer_config(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic}
    ).kafka
    with closing(ParkedKeys(kafka)) as keys:
        eventually(lambda: {(topic, b"k3"), (topic, b"k13")} <= keys.parked().keys())
    time.sleep(3)  # so that the consumer passes over the keys by itself
    assert len(handled(file)) == total - 20
    (tmp_path / "handled.healed").touch()
    assert kshare_command(["unpark", *parked, "k3", "k13"]) == 0
    eventually(lambda: len(handled(file)) == total)
    process.terminate()
    assert process.wait() == 0
    check_order(handled(file), total)


def test_letters_are_put_back_in_order_and_once_also_when_it_is_interrupted(
    broker: KafkaBroker, topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    letters, other = broker.create_topic(partitions=2), broker.create_topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for at in [*range(40), 39]:  # a crash had written the last one twice
        place = (topic, "0", str(at), "builtins.ValueError", "no")
        own = [(name, text.encode()) for name, text in zip(HEADERS, place, strict=False)]
        headers: list[tuple[str, str | bytes | None]] = [("trace", b"t"), *own]
        producer.produce(letters, f"{at}", f"k{at % 4}", partition=at % 2, headers=headers)
    producer.flush()
    command = ["replay", "--from", letters, "--bootstrap-servers", broker.bootstrap_servers]
    assert kshare_command([*command, "--dry-run"]) == 0
    assert "40 letters would be put back" in capsys.readouterr().out
    monkeypatch.setattr(replay, "_BATCH", 7)  # so that it takes several transactions
    assert kshare_command([*command, "--to", other, "k2"]) == 0
    eventually(lambda: len(values(broker, other)) >= 10)  # markers come after the answers
    moved = [(key, int(value)) for key, value, _ in values(broker, other)]
    assert moved == [(b"k2", at) for at in range(2, 40, 4)]
    produced, produce = list[str](), Transaction.produce

    def breaks(*given: Any, **named: Any) -> None:
        produced.append(given[1])
        if len(produced) == 12:
            raise KeyboardInterrupt
        produce(*given, **named)

    monkeypatch.setattr(Transaction, "produce", breaks)
    command += ["--topic", topic]
    assert kshare_command(command) == 130
    monkeypatch.undo()
    assert kshare_command(command) == 0
    assert kshare_command(command) == 0
    assert "nothing to put back" in capsys.readouterr().out
    eventually(lambda: len(values(broker, topic)) >= 30)
    back = values(broker, topic)
    for key in range(4):
        found = [int(value) for name, value, _ in back if name == b"k%d" % key]
        assert found == ([] if key == 2 else list(range(key, 40, 4)))
    assert all(headers == [("trace", b"t")] for *_, headers in back)


def values(broker: KafkaBroker, topic: str) -> list[tuple[Any, Any, Any]]:
    """Keys, values and headers that a reader of committed records sees."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"}
    reader = Consumer(config | {"isolation.level": "read_committed", "enable.partition.eof": True})
    reader.assign([TopicPartition(topic, 0, 0)])
    found = [(row.key(), row.value(), row.headers() or []) for row in read_to_end(reader)]
    reader.close()
    return found


def test_an_attempt_that_fails_while_its_key_is_handed_over_counts(
    broker: KafkaBroker, topic: str
) -> None:
    """A member joins while handlers run: whoever gets their records knows how they have ended."""
    letters = f"{topic}-dlq"
    broker.create_topic(letters)
    broker.produce(topic, [(f"k{at}", "v") for at in range(40)], partition=0)
    calls = Counter[int]()

    async def handler(record: Record) -> None:
        calls[record.offset] += 1
        await asyncio.sleep(4.0)
        raise ValueError("no")

    def processor() -> Processor:
        retry = Retry(attempts=2, first=0.5, most=0.5)
        return Processor(handler, retry=retry, on_failure=DeadLetter(letters))

    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
        "heartbeat.interval.ms": 300,
    }
    with ExitStack() as stack:
        runners = [
            Runner(processor(), stack.enter_context(KeySharedConsumer(config)), [topic])
            for _ in range(2)
        ]
        threads = [threading.Thread(target=asyncio.run, args=(each.run(),)) for each in runners]
        threads[0].start()
        eventually(lambda: len(calls) == 40)
        threads[1].start()
        try:
            eventually(lambda: len(set(read(broker, letters))) == 40)
        finally:
            for each in runners:
                each.stop()
            for thread in threads:
                thread.join()
    assert set(calls.values()) == {2}


def test_a_key_is_released_in_order_while_processors_run_and_records_of_it_come(
    broker: KafkaBroker,
    topic: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``kshare replay --release``: two processors, as by default; records come amid it."""
    letters = f"{topic}-dlq"
    broker.create_topic(letters)
    broker.produce(topic, [(key, str(at)) for at in range(30) for key in ("k1", "k2")], partition=0)
    handled = defaultdict[bytes, list[int]](list)
    healed, written, flush = threading.Event(), [30], Transaction.flush

    async def handler(record: Record) -> None:
        if record.key == b"k1" and int(record.value) == 20 and not healed.is_set():
            raise ValueError("no such customer")
        handled[record.key].append(int(record.value))

    def write() -> None:
        broker.produce(topic, [("k1", str(written[0]))], partition=0)
        written[0] += 1

    def amid(self: Transaction) -> None:
        """Twice a record of the key comes between its letters, and then one behind them."""
        count = written[0] - 30
        flush(self)
        if count <= 3:
            write()
        if 1 <= count < 3:  # more of what is put back follows it
            self.produce(topic, b"again", b"k1", 0, 0, own_headers[0])
            flush(self)

    own_headers, produce = list[Any](), Transaction.produce

    def noted(self: Transaction, *given: Any) -> None:
        own_headers[:] = [given[-1]]
        produce(self, *given)

    monkeypatch.setattr(Transaction, "flush", amid)
    monkeypatch.setattr(Transaction, "produce", noted)
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
        "heartbeat.interval.ms": 300,
    }
    command = ["replay", "--from", letters, "--bootstrap-servers", broker.bootstrap_servers]
    command += ["--release", "--group", topic, "--topic", topic, "k1"]
    policy = DeadLetter(letters, sequence=True)
    with ExitStack() as stack:
        runners = [
            Runner(
                Processor(handler, retry=Retry(attempts=1), on_failure=policy),
                stack.enter_context(KeySharedConsumer(config)),
                [topic],
            )
            for _ in range(2)
        ]
        threads = [threading.Thread(target=asyncio.run, args=(each.run(),)) for each in runners]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: broker.latest(letters) >= 10)
            healed.set()
            write()
            assert kshare_command(command) == 0
            assert capsys.readouterr().out.endswith("put back, released\n")
            write()
            eventually(lambda: handled[b"k1"] and handled[b"k1"][-1] == written[0] - 1)
        finally:
            for each in runners:
                each.stop()
            for thread in threads:
                thread.join()
    assert written[0] > 33
    assert handled[b"k1"] == list(range(written[0]))
    assert handled[b"k2"] == list(range(30))


def test_letters_that_their_topic_never_takes_do_not_hold_their_keys(
    broker: KafkaBroker,
) -> None:
    """Too large with its headers; a time that the topic refuses; no key in a compacted topic."""
    topic = broker.create_topic(config={"message.timestamp.after.max.ms": 2**63 - 1})
    letters = f"{topic}-dlq"
    limits = {"cleanup.policy": "compact", "max.message.bytes": 1_048_588}  # Kafka's default
    broker.create_topic(letters, config=limits)
    large = {"message.max.bytes": 2_000_000}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **large})
    microseconds = int(time.time() * 1_000_000)
    producer.produce(topic, b"v" * 1_048_470, b"a", partition=0)
    producer.produce(topic, b"early", b"b", partition=0, timestamp=microseconds)
    producer.produce(topic, b"keyless", partition=0)
    producer.produce(topic, b"whole", b"c", partition=0)
    for key in (b"a", b"b", b"c"):
        producer.produce(topic, b"good", key, partition=0)
    assert not producer.flush(60)
    handled = list[bytes]()

    async def handler(record: Record) -> None:
        if record.value != b"good":
            raise ValueError("no")
        handled.append(record.key)

    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
    }
    processor = Processor(handler, retry=Retry(attempts=1), on_failure=DeadLetter(letters))
    with KeySharedConsumer(config) as consumer:
        runner = Runner(processor, consumer, [topic])
        thread = threading.Thread(target=asyncio.run, args=(runner.run(),))
        thread.start()
        try:
            eventually(lambda: sorted(handled) == [b"a", b"b", b"c"])
            eventually(lambda: broker.latest(letters) >= 4)
        finally:
            runner.stop()
            thread.join()
    found, left_out = dict[Any, list[Any]](), dict[Any, Any]()
    for key, value, headers in values(broker, letters):
        offset = dict(headers)["__connect.errors.offset"]
        found[offset], left_out[offset] = [key, value], dict(headers).get("kshare.left-out")
    assert found == {
        b"0": [b"a", b""],
        b"1": [b"b", b"early"],
        b"2": [f"{topic}-0@2".encode(), b"keyless"],
        b"3": [b"c", b"whole"],
    }
    assert left_out == {b"0": b"value, headers", b"1": b"timestamp", b"2": b"no key", b"3": None}
