"""``kshare replay``: puts dead letters back."""

import argparse
import sys
from typing import Any

from kshare.cli.connection import needed_kafka_config, properties_of
from kshare.cli.keys import keys_of
from kshare.cli.output import counted
from kshare.core.listing import show_key
from kshare.processing.replay import Letter, Replay

__all__ = ["run"]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Put letters back, or list them, and return the exit code."""
    if arguments.to == arguments.source:
        parser.error(f"--to {arguments.to}: it would be put back for ever; choose another topic")
    keys = keys_of(parser, arguments)
    kafka = needed_kafka_config(parser, arguments)
    replay = Replay(kafka, _config(arguments), arguments.source, arguments.to, keys)
    if arguments.dry_run:
        letters = 0
        for letter in replay.look():
            letters += 1
            sys.stdout.write(_line(letter))
        sys.stdout.write(f"{counted(letters, 'letter')} would be put back\n")
        return 0
    replay.run()
    for topic, count in sorted(replay.counts.items()):
        sys.stdout.write(f"{topic}: {count} put back\n")
    if not replay.counts:
        sys.stdout.write("nothing to put back\n")
    if replay.repeated:
        sys.stdout.write(f"{replay.repeated} had been written twice, and were put back once\n")
    return 0


def _line(letter: Letter) -> str:
    key = "-" if letter.key is None else show_key(letter.key)
    place = "?" if letter.place is None else "{}-{} offset {}".format(*letter.place)
    return f"{key}\t{place}\t-> {letter.topic}\t{letter.why}\n"


def _config(arguments: argparse.Namespace) -> dict[str, Any]:
    """The connection, as a consumer takes it."""
    file = arguments.kafka_config
    config: dict[str, Any] = {} if file is None else dict(properties_of(file))
    config.update({name[len("kafka.") :]: value for name, value in arguments.option})
    if arguments.bootstrap_servers:
        config["bootstrap.servers"] = arguments.bootstrap_servers
    return config
