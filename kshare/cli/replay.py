"""``kshare replay``: puts dead letters back."""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kshare.cli.connection import log_topic, needed_kafka_config, properties_of
from kshare.cli.keys import keys_of
from kshare.cli.output import counted, printable, say, say_block
from kshare.core.listing import show_key
from kshare.options import KafkaConfig
from kshare.processing.release import Release
from kshare.processing.replay import Letter, Replay

__all__ = ["run"]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Put letters back, or list them, and return the exit code."""
    if arguments.to == arguments.source:
        parser.error(f"--to {arguments.to}: it would be put back for ever; choose another topic")
    if arguments.release != (arguments.group is not None):
        parser.error("--release and --group belong together: whose processors are to handle them?")
    for option, given in (("--to", arguments.to), ("--dry-run", arguments.dry_run)):
        if arguments.release and given:
            parser.error(f"--release puts letters back where they came from; leave {option} out")
    keys = keys_of(parser, arguments)
    kafka = needed_kafka_config(parser, arguments)
    replay = Replay(kafka, _config(arguments), arguments.source, arguments.to, keys)
    replay.skips_bad = arguments.skip_bad
    replay.topics = arguments.topics or None
    if arguments.dry_run:
        return _look(replay)
    counts = replay.check()
    if arguments.to is None and replay.topics is None:
        if counts and not arguments.yes and not _is_agreed(parser, counts):
            return 1
        replay.topics = tuple(counts)  # one that comes later may name another topic
    if arguments.release:
        return _release(kafka, arguments, replay)
    replay.run()
    if not replay.counts:
        say("nothing to put back")
    return _said(replay)


def _look(replay: Replay) -> int:
    letters = 0
    for letter in replay.look():
        letters += 1
        say(_line(letter))
    say(f"{counted(letters, 'letter')} would be put back")
    return _said(replay)


def _is_agreed(parser: argparse.ArgumentParser, counts: Mapping[str, int]) -> bool:
    """True if the user wants letters to be put back where they say that they came from."""
    for topic, count in sorted(counts.items()):
        say(f"{topic}: {counted(count, 'letter')}")
    if not sys.stdin.isatty():
        parser.error(
            "whoever may write dead letters chooses these topics: name those that are right "
            "(--topic), or say --yes"
        )
    say_block("Put them back to these topics? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _release(kafka: KafkaConfig, arguments: argparse.Namespace, replay: Replay) -> int:
    # Not those that letters name: keys are held, too, whose letters are gone.
    topics = arguments.topics or None
    log = log_topic(arguments, kafka)
    with closing(Release(replay, arguments.group, log, topics)) as release:
        found = 0
        for partition, key, letters, is_seen in release.run():
            found += 1
            became = f"{letters} put back, released"
            if letters and not is_seen:
                became = (
                    f"{letters} put back; no processor of group {arguments.group} has handled them "
                    "so far: is one running?"
                )
            elif not letters:
                became = "no letters, not released: kshare unpark releases it"
            say(f"{partition} {show_key(key)}: {became}")
    if not found:
        say("no key to release")
    replay.counts.clear()  # each key has its line
    replay.others.clear()
    return _said(replay)


def _said(replay: Replay) -> int:
    """Print what became of letters; the exit code."""
    for topic, count in sorted(replay.counts.items()):
        say(f"{topic}: {count} put back")
    if replay.repeated:
        say(f"{replay.repeated} had been written twice, and were put back once")
    for topic, count in sorted(Counter(replay.others.values()).items()):
        say(f"{topic}: {counted(count, 'letter')} stay, not named")
    for line in replay.bad_lines():
        say(f"stays: {line}")
    return 1 if replay.bad and not replay.skips_bad else 0


def _line(letter: Letter) -> str:
    key = "-" if letter.key is None else show_key(letter.key)
    place = "?" if letter.place is None else "{}-{} offset {}".format(*letter.place)
    return "\t".join(map(printable, (key, place, f"-> {letter.topic}", letter.why)))


def _config(arguments: argparse.Namespace) -> dict[str, Any]:
    """The connection, as a consumer takes it."""
    file = arguments.kafka_config
    config: dict[str, Any] = {} if file is None else dict(properties_of(file))
    config.update({name[len("kafka.") :]: value for name, value in arguments.option})
    if arguments.bootstrap_servers:
        config["bootstrap.servers"] = arguments.bootstrap_servers
    return config
