"""``kshare policy``: what operators do not allow: set, taken away and listed."""

import argparse
from contextlib import closing

from kshare.cli.connection import needed_kafka_config, user_name
from kshare.cli.output import Answer, complain, counted, say, text_table
from kshare.kafka.cluster import Cluster
from kshare.kafka.policies import RANGE_FETCH, Policies, Policy
from kshare.options import KafkaConfig, Subscribe

__all__ = ["run"]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Answer | int:
    """Run the command."""
    if arguments.action == "list":
        return _list(needed_kafka_config(parser, arguments), arguments)
    if (arguments.name == RANGE_FETCH) != (arguments.topic is not None):
        parser.error(f"{RANGE_FETCH} needs --topic, and only that takes it")
    kafka = needed_kafka_config(parser, arguments)
    return (_unset if arguments.action == "unset" else _set)(kafka, arguments)


def _set(kafka: KafkaConfig, arguments: argparse.Namespace) -> int:
    if arguments.topic is not None:
        with closing(Cluster(kafka)) as cluster:
            cluster.partitions(Subscribe((arguments.topic,)))  # a misspelt one is an error
    policy = Policy(arguments.name, arguments.topic or "")
    with closing(Policies(kafka)) as policies:
        policies.set(policy, arguments.value == "true", by=user_name(), why=arguments.why)
    of = f" of topic {policy.topic}" if policy.topic else ""
    say(f"{policy.name}{of} is {arguments.value}")
    return 0


def _unset(kafka: KafkaConfig, arguments: argparse.Namespace) -> int:
    policy = Policy(arguments.name, arguments.topic or "")  # its topic may be gone
    with closing(Policies(kafka)) as policies:
        was_set = policies.unset(policy)
    of = f" of topic {policy.topic}" if policy.topic else ""
    now = "is not set any more" if was_set else "was not set"
    say(f"{policy.name}{of} {now}: it accepts")
    return 0


def _list(kafka: KafkaConfig, arguments: argparse.Namespace) -> Answer:
    with closing(Policies(kafka)) as policies:
        if arguments.drop_damaged:
            count = policies.drop_damaged()
            complain(f"{counted(count, 'damaged record')} deleted")
        listed = sorted(policies.read().items())
    rows = [
        {
            "policy": policy.name,
            "topic": policy.topic or None,
            "value": info.value,
            "since": info.since,
            "by": info.by,
            "why": info.why,
        }
        for policy, info in listed
    ]
    if not listed:
        return Answer(rows, "no policy is set: all is accepted\n")
    table = [("policy", "topic", "value", "since", "by", "why")]
    for policy, info in listed:
        shown = (policy.topic or "(all)", str(info.value).lower(), info.since, info.by, info.why)
        table.append((policy.name, *shown))
    return Answer(rows, text_table(table))
