"""The arguments of commands that test clients of Kafka, kshare's and others, and try them out.

Cost: argparse, and nothing else.
"""

import argparse
from pathlib import Path
from typing import Any

from kshare.cli.arguments import set_module

__all__ = ["add_client_commands"]


def add_client_commands(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add these commands to the parser of the program."""
    _add_broker(commands)
    _add_check_history(commands)
    _add_verifiable_consumer(commands)


def _add_broker(commands: "argparse._SubParsersAction[Any]") -> None:
    broker = commands.add_parser(
        "broker",
        help="run a broker with a topic of orders on this machine, to try things out",
        description="Run a small broker on this machine, without Java, Docker or a download, until "
        "Ctrl+C. Topic orders has records with keys customer-1, customer-2, ... and JSON values, "
        "and more come each second. It keeps records in memory, 5 MiB a partition, and readers "
        "refuse what transactions wrote: it is no place for data, measurements or exactlyOnce.",
    )
    broker.add_argument(
        "--port",
        type=int,
        default=9092,
        help="the port at localhost; 0 for any (default: %(default)s)",
    )
    set_module(broker, "broker")


def _add_check_history(commands: "argparse._SubParsersAction[Any]") -> None:
    check = commands.add_parser(
        "check-history",
        help="check whether consumers of Kafka have lost, doubled or reordered records",
        description="Judge what consumers have received, by Jepsen's anomalies, key by key: "
        "duplicate, lost write, aborted read, poll skip, non-monotonic poll, torn transaction. "
        "Rebalances are no excuse. FILE has JSON lines, as docs/design/histories.md says, or what "
        "Kafka's verifiable clients print with --verbose (then a file for each). Exit code 1 if "
        "there is an anomaly, 2 if a line cannot be read.",
    )
    check.add_argument("files", nargs="+", metavar="FILE", help="-: read standard input")
    check.add_argument(
        "--partial",
        action="store_true",
        help="consumers were ended early: what they might still have received is not lost",
    )
    check.add_argument(
        "--no-order", action="store_true", help="the order of keys is not to be kept"
    )
    check.add_argument("--json", action="store_true", help="for programs")
    set_module(check, "check_history")


def _add_verifiable_consumer(commands: "argparse._SubParsersAction[Any]") -> None:
    consumer = commands.add_parser(
        "verifiable-consumer",
        help="run the consumer that Kafka's system tests drive; it prints events as JSON lines",
        description="Consume a topic as a member of a group, and print what happens as JSON lines: "
        "startup_complete, partitions_assigned, partitions_revoked, records_consumed, record_data, "
        "offsets_committed, shutdown_complete. The options are those of Kafka's own "
        "VerifiableConsumer; SIGTERM and SIGINT end it.",
    )
    consumer.add_argument(
        "--bootstrap-server",
        "--broker-list",
        required=True,
        metavar="HOST:PORT,...",
        help="one broker of the cluster, or more",
    )
    consumer.add_argument("--topic", required=True, help="the topic to consume")
    consumer.add_argument("--group-id", required=True, help="id of the group")
    consumer.add_argument("--group-instance-id", metavar="ID", help="id of a static member")
    consumer.add_argument(
        "--max-messages",
        type=int,
        default=-1,
        metavar="N",
        help="end after so many records; -1: when it is asked to",
    )
    consumer.add_argument(
        "--session-timeout", type=int, default=30_000, metavar="MS", help="session.timeout.ms"
    )
    consumer.add_argument("--verbose", action="store_true", help="print each record, too")
    consumer.add_argument(
        "--enable-autocommit",
        action="store_true",
        help="commit from time to time, instead of after each call",
    )
    consumer.add_argument(
        "--reset-policy",
        choices=("earliest", "latest", "none"),
        default="earliest",
        help="auto.offset.reset",
    )
    consumer.add_argument(
        "--assignment-strategy",
        default="org.apache.kafka.clients.consumer.RangeAssignor",
        metavar="CLASS",
        help="no assignor, but how rebalances are told: all that is assigned now; with "
        "CooperativeStickyAssignor, what was gained",
    )
    consumer.add_argument(
        "--group-protocol",
        default="classic",
        metavar="NAME",
        help="kshare has one of its own; with consumer, what was gained is told",
    )
    consumer.add_argument("--group-remote-assignor", metavar="NAME", help="without effect")
    consumer.add_argument(
        "--consumer.config",
        dest="consumer_config",
        type=Path,
        metavar="FILE",
        help="properties of the consumer; allow.individual.commit=false for whole partitions",
    )
    set_module(consumer, "verifiable_consumer")
