"""``kshare park``, ``unpark`` and ``parked``: keys that wait while all others go on.

Guarantees: what is said to be parked is what the cluster holds when the command ends.
"""

import argparse
import re
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from kshare.cli.connection import log_topic, needed_kafka_config, user_name
from kshare.cli.output import Answer, complain, counted, say
from kshare.cli.show import parked_json, parked_text
from kshare.core.listing import show_key
from kshare.group.log.retry_log import RetryLog
from kshare.group.log.topic import log_table
from kshare.group.tools.offsets import GroupOffsets
from kshare.kafka.cluster import Cluster
from kshare.kafka.parked_keys import ParkedKeys
from kshare.options import KafkaConfig, Subscribe

__all__ = ["keys_of", "run"]

_LATE: Final = (
    "what has waited comes with the next batch; behind a watermark it is late, and may be dropped\n"
    "-> 'Unpark behind a watermark' in docs/slow-keys.md"
)
_HEX: Final = re.compile("(?:[0-9a-fA-F]{2})*")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Answer | int:
    """Run one of the three commands."""
    if hasattr(arguments, "keys"):
        arguments.keys = keys_of(parser, arguments)
    kafka = needed_kafka_config(parser, arguments)
    if arguments.command == "parked":
        return _parked(kafka, arguments)
    return (_park if arguments.command == "park" else _unpark)(kafka, arguments)


def keys_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> list[bytes]:
    """The keys that a command was given, as bytes."""
    if not arguments.hex:
        # What is not UTF-8 on the command line comes as it was typed.
        return [key.encode("utf-8", "surrogateescape") for key in arguments.keys]
    wrong = [key for key in arguments.keys if not _HEX.fullmatch(key)]
    if wrong:
        parser.error(f"--hex: {wrong[0]!r} is not bytes in hexadecimal; wanted such as 00ff")
    return [bytes.fromhex(key) for key in arguments.keys]


def _park(kafka: KafkaConfig, arguments: argparse.Namespace) -> int:
    with closing(Cluster(kafka)) as cluster:
        cluster.partitions(Subscribe((arguments.topic,)))  # a misspelt one is an error
    with closing(ParkedKeys(kafka)) as parked:
        before = parked.parked()
        parked.park(arguments.topic, arguments.keys, by=user_name(), why=arguments.why)
    known = {key for topic, key in before if topic == arguments.topic}
    _say(arguments, lambda key: "was parked already" if key in known else "parked")
    return 0


def _unpark(kafka: KafkaConfig, arguments: argparse.Namespace) -> int:
    if arguments.group is not None:
        return _release(kafka, arguments)
    with closing(ParkedKeys(kafka)) as parked:
        before = {key for topic, key in parked.parked() if topic == arguments.topic}
        parked.unpark(arguments.topic, arguments.keys)
    _say(arguments, lambda key: "unparked" if key in before else "was not parked")
    if before.intersection(arguments.keys):
        complain(_LATE)
    return 0


def _release(kafka: KafkaConfig, arguments: argparse.Namespace) -> int:
    """Let a group's processors handle the records of keys again that follow a dead letter."""
    log = log_topic(arguments, kafka)
    with closing(RetryLog(log_table(kafka, log, arguments.group), arguments.group)) as retry_log:
        kept = retry_log.read().sequences
        if not kept:
            with GroupOffsets(arguments.group, kafka, log) as offsets:
                offsets.checked()  # a misspelt group has none, and neither has another log
        sequences = [
            (partition, key)
            for partition, key in kept
            if partition.topic == arguments.topic and key in arguments.keys
        ]
        for partition, key in sequences:
            retry_log.end_sequence(partition, key)
    held = {key for _, key in sequences}
    _say(arguments, lambda key: "released" if key in held else "was not held")
    return 0


def _parked(kafka: KafkaConfig, arguments: argparse.Namespace) -> Answer:
    with closing(ParkedKeys(kafka)) as parked:
        if arguments.drop_damaged:
            count = parked.drop_damaged()
            complain(f"{counted(count, 'damaged record')} deleted")
        listed = {
            key: info for key, info in parked.parked().items() if arguments.topic in {None, key[0]}
        }
    return Answer(parked_json(listed), parked_text(listed, time.time()))


def _say(arguments: argparse.Namespace, became: Callable[[bytes], str]) -> None:
    """Print what became of each key."""
    for key in dict.fromkeys(arguments.keys):
        say(f"{arguments.topic} {show_key(key)}: {became(key)}")
