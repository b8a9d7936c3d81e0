"""The commands of ``kshare`` and their arguments; what a command does is imported when it runs.

Cost: argparse, and nothing else.
"""

import argparse
from pathlib import Path
from typing import Any, Final

from kshare.cli.shared_arguments import (
    add_drop_damaged,
    add_hex,
    add_log_topic,
    add_plot,
    add_what_to_look_at,
    nonempty_name,
    set_connected,
    set_module,
)

__all__ = ["FEATURES", "add_commands"]

FEATURES: Final = (
    "source",
    "groups",
    "exactly-once",
    "real-time",
    "parked-keys",
    "dead-letters",
)
"""The features of ``kshare doctor``, as ``--feature`` names them."""


def add_commands(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add all commands to the parser of the program."""
    for add in (
        _add_keys,
        _add_replay,
        _add_status,
        _add_checkpoint,
        _add_offsets,
        _add_groups,
        _add_owners,
        _add_top,
        _add_ui,
        _add_policy,
        _add_ledger,
        _add_assign,
        _add_doctor,
        _add_broker,
    ):
        add(commands)


def _add_keys(commands: "argparse._SubParsersAction[Any]") -> None:
    park = commands.add_parser(
        "park",
        help="let all queries pass over keys; their records wait",
        description="Park keys of a topic: queries leave their records where they are, and go on "
        "with all others. Running queries know within 2 s, and a batch that runs is not changed. "
        "Records of a parked key are as mortal as others: retention deletes them.",
    )
    _add_key_arguments(park)
    park.add_argument("--why", default="", metavar="TEXT", help="for those who find it parked")
    unpark = commands.add_parser(
        "unpark",
        help="let queries read parked keys again, from where they stand",
        description="Unpark keys of a topic: queries read them again, from their first record "
        "that was not processed.",
    )
    _add_key_arguments(unpark)
    unpark.add_argument(
        "--group",
        type=nonempty_name,
        help="let this group's processors handle keys again that follow a dead letter "
        "(DeadLetter with sequence=True)",
    )
    add_log_topic(unpark)
    parked = commands.add_parser(
        "parked",
        help="list the keys that are parked",
        description="List the keys that are parked, since when, by whom and why.",
    )
    parked.add_argument("--topic", type=nonempty_name, help="only keys of this topic")
    parked.add_argument("--json", action="store_true", help="for programs")
    add_drop_damaged(parked)
    for parser in (park, unpark, parked):
        set_connected(parser, "keys")


def _add_key_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", type=nonempty_name, required=True, help="the topic that the keys are of"
    )
    add_hex(parser)
    parser.add_argument("keys", nargs="+", metavar="KEY", help="a key; text is taken as UTF-8")


def _add_replay(commands: "argparse._SubParsersAction[Any]") -> None:
    replay = commands.add_parser(
        "replay",
        help="put dead letters of processors back, in the order of their keys",
        description="Put the records of a dead-letter topic back to where they came from, without "
        "the headers that say why. Records and what is put back are committed together: if it is "
        "interrupted, run it again, and readers with isolation.level=read_committed see each "
        "once. The group kshare-replay-TOPIC knows what was put back.",
    )
    replay.add_argument(
        "--from",
        dest="source",
        type=nonempty_name,
        required=True,
        metavar="TOPIC",
        help="the dead-letter topic",
    )
    replay.add_argument(
        "--to", type=nonempty_name, metavar="TOPIC", help="put all of them here instead"
    )
    replay.add_argument(
        "--topic",
        type=nonempty_name,
        action="append",
        dest="topics",
        default=[],
        metavar="TOPIC",
        help="put back only letters that came from this topic (repeat it for more); others stay",
    )
    replay.add_argument(
        "--yes",
        action="store_true",
        help="put them back to all topics that they name; without it, and without --topic or --to, "
        "it shows how many would go where, and asks",
    )
    replay.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave letters there that cannot be put back, list them, and put the others back; "
        "without it, none is put back then",
    )
    replay.add_argument(
        "--release",
        action="store_true",
        help="also end the sequences of their keys (DeadLetter with sequence=True) in --group, "
        "with the first record that is put back: its processors handle these keys from there on, "
        "in order, and may run meanwhile",
    )
    replay.add_argument(
        "--group",
        type=nonempty_name,
        help="with --release: the group whose processors wrote the letters",
    )
    add_log_topic(replay)
    replay.add_argument(
        "--dry-run", action="store_true", help="list what would be put back, and change nothing"
    )
    add_hex(replay)
    replay.add_argument(
        "keys", nargs="*", metavar="KEY", help="only letters of these keys; others stay pending"
    )
    set_connected(replay, "replay")


def _add_status(commands: "argparse._SubParsersAction[Any]") -> None:
    status = commands.add_parser(
        "status",
        help="show positions, lag, gaps and parked keys of a query, running or not",
        description="Show how far a query is, from its checkpoint: for each partition the stable "
        "offset (all below it is processed), the front (nothing above it is), and its ranges of "
        "key hashes. With a broker: lag and parked keys, too. Lag is in offsets, so at most so "
        "many records.",
    )
    status.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="the query's checkpointLocation"
    )
    status.add_argument("--json", action="store_true", help="for programs")
    status.add_argument(
        "--slowest",
        action="store_true",
        help="which keys wait in the ranges that are furthest behind, and in the slowest one: "
        "reads up to 1,000 records of each, of at most 5 (needs a broker)",
    )
    add_plot(status)
    set_connected(status, "status")


def _add_checkpoint(commands: "argparse._SubParsersAction[Any]") -> None:
    checkpoint = commands.add_parser(
        "checkpoint",
        help="change a stopped query's checkpoint",
        description="Change the checkpoint of a query that does not run.",
    )
    actions = checkpoint.add_subparsers(required=True, metavar="ACTION", dest="action")
    drop = actions.add_parser(
        "drop-ranges",
        help="back to the stable offsets: no ranges any more, at least once",
        description="Set each partition back to its stable offset, below which all is processed. "
        "What was processed above it is forgotten, so these records come again: at least once. "
        "So do those of a batch that is planned and not finished, in a later one. "
        "Where the query started is left out, once that batch is done. "
        "Spark's own Kafka source can then go on from the checkpoint, too. Stop the query first. "
        "The files that are replaced are kept beside the others.",
    )
    drop.add_argument("directory", metavar="DIR", help="the query's checkpointLocation")
    set_module(drop, "checkpoint")


def _add_offsets(commands: "argparse._SubParsersAction[Any]") -> None:
    offsets = commands.add_parser(
        "offsets",
        help="show, reset or drop stable offsets and individual commits of a group",
        description="Show what a consumer group has committed: for each partition the stable "
        "offset (all below it is processed), what is processed above it, and the lag. `reset` "
        "lets the group start elsewhere, and voids its individual commits. `drop` deletes the "
        "group's records from the log, if they cannot be read any more; the stable offsets stay. "
        "Both are refused while a member is alive. `drop --damaged` is not: it deletes only the "
        "records that cannot be read. The options of `reset` have the names and "
        "meanings of kafka-consumer-groups --reset-offsets.",
    )
    offsets.add_argument(
        "action", nargs="?", choices=("list", "reset", "drop"), default="list", help="default: list"
    )
    offsets.add_argument("--group", type=nonempty_name, required=True, help="id of the group")
    offsets.add_argument(
        "--to",
        metavar="WHERE",
        help="for reset: earliest, latest, stable, or JSON: the offsets of some partitions",
    )
    for name in ("earliest", "latest"):
        flag = f"--to-{name}"
        offsets.add_argument(
            flag, action="store_const", const=name, dest="to", help=f"for reset: as --to {name}"
        )
    offsets.add_argument(
        "--to-datetime",
        metavar="TIME",
        help="for reset: the first records from a time on, such as 2026-03-01T06:00:00Z; UTC "
        "without a time zone",
    )
    offsets.add_argument(
        "--by-duration",
        metavar="DURATION",
        help="for reset: the first records that are not older, such as PT1H30M, P1D or 90m",
    )
    offsets.add_argument(
        "--shift-by",
        metavar="N",
        help="for reset: so many offsets after the stable offsets, or before (-100); within the "
        "log",
    )
    offsets.add_argument(
        "--dry-run",
        action="store_true",
        help="for reset and drop: say what would be done, and change nothing",
    )
    offsets.add_argument(
        "--damaged",
        action="store_true",
        help="for drop: only the records that cannot be read; members may be alive, so it waits "
        "for their claim.timeout.ms before it deletes a claim",
    )
    offsets.add_argument("--json", action="store_true", help="for programs")
    add_plot(offsets)
    offsets.add_argument("--topic", type=nonempty_name, help="only partitions of this topic")
    add_log_topic(offsets)
    set_connected(offsets, "offsets")


def _add_groups(commands: "argparse._SubParsersAction[Any]") -> None:
    groups = commands.add_parser(
        "groups",
        help="list the key-shared consumer groups, or members, key ranges and lag of one",
        description="List the groups that have a log of individual commits. With --group, show "
        "one: its members, who owns which key hashes, how far each range is, and its lag (in "
        "offsets, so at most so many records). It joins no group.",
    )
    groups.add_argument(
        "--group", type=nonempty_name, help="id of the group; none: list the groups"
    )
    groups.add_argument("--json", action="store_true", help="for programs")
    add_plot(groups)
    add_log_topic(groups)
    set_connected(groups, "groups")


def _add_owners(commands: "argparse._SubParsersAction[Any]") -> None:
    owners = commands.add_parser(
        "owners",
        help="show which process of a group owns a key, or each range of key hashes",
        description="Show which member of a group owns a key, and where it runs "
        "(application.server). Without --key, show the owner of each range. Exit code 1 if nobody "
        "owns the key.",
    )
    owners.add_argument("--group", type=nonempty_name, required=True, help="id of the group")
    owners.add_argument(
        "--topic", type=nonempty_name, help="the topic of the key; without --key: only this topic"
    )
    owners.add_argument("--key", help="a key; text is taken as UTF-8")
    owners.add_argument(
        "--hex", action="store_true", help="the key is bytes in hexadecimal, such as 00ff"
    )
    owners.add_argument(
        "--partition",
        type=int,
        metavar="N",
        help="the key's partition, if producers do not choose it as Java's do by default",
    )
    owners.add_argument("--json", action="store_true", help="for programs")
    add_log_topic(owners)
    set_connected(owners, "owners")


def _add_top(commands: "argparse._SubParsersAction[Any]") -> None:
    top = commands.add_parser(
        "top",
        help="watch the ranges of a query or a group: position, lag, speed",
        description="Show the key ranges of a query or a group, again and again: how far each is, "
        "its lag, and how many offsets a second are processed (a mean over up to a minute). In a "
        "terminal, keys sort: h by hash, l by lag, s by speed, p by position, m by member, r "
        "reversed; arrows scroll, q ends. Elsewhere each look is printed below the last. Lag is "
        "in offsets, so at most so many records.",
    )
    add_what_to_look_at(top)
    top.add_argument(
        "--once",
        action="store_true",
        help="for scripts: two looks, so that speeds are known, print, and end",
    )
    top.add_argument(
        "--json", action="store_true", help="for programs: an object for each look, a line each"
    )
    top.add_argument(
        "--sort",
        choices=("hash", "lag", "speed", "position", "member"),
        default="hash",
        help="the order of the ranges (default: hash)",
    )
    set_module(top, "top")


def _add_ui(commands: "argparse._SubParsersAction[Any]") -> None:
    ui = commands.add_parser(
        "ui",
        help="serve a web page of a query or a group: ranges, picture, parked keys, members",
        description="Serve a page that shows what `kshare top` shows, a picture of offsets by key "
        "hash, parked keys and members. The page changes nothing. It has no login: by default "
        "only this machine reaches it.",
    )
    add_what_to_look_at(ui)
    ui.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at (default: 127.0.0.1)"
    )
    ui.add_argument(
        "--port", type=int, default=8099, help="the port; 0 for any (default: %(default)s)"
    )
    ui.add_argument(
        "--allowed-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a host name by which browsers ask for the page, such as that of a proxy: no other "
        "is answered then; may be repeated",
    )
    set_module(ui, "ui")


def _add_policy(commands: "argparse._SubParsersAction[Any]") -> None:
    policy = commands.add_parser(
        "policy",
        help="show and set what operators forbid: sharing in groups, reading by key range",
        description="Show or set policies. Running queries and consumers know within 2 s.",
    )
    actions = policy.add_subparsers(required=True, metavar="ACTION", dest="action")
    set_ = actions.add_parser(
        "set",
        help="set a policy",
        description="accept.individual.commit is of the whole cluster: whether groups may share "
        "partitions and commit individual offsets. accept.range.fetch is of a topic: whether it "
        "may be read by ranges of key hashes.",
    )
    unset = actions.add_parser(
        "unset",
        help="take a policy away, as if it had never been set",
        description="Take a policy away, also of a topic that is gone. What is not set accepts.",
    )
    for parser in (set_, unset):
        parser.add_argument("name", choices=("accept.individual.commit", "accept.range.fetch"))
        parser.add_argument("--topic", type=nonempty_name, help="the topic of accept.range.fetch")
    set_.add_argument("value", choices=("true", "false"))
    set_.add_argument("--why", default="", metavar="TEXT", help="for those who find it set")
    listed = actions.add_parser(
        "list", help="the policies that are set", description="List the policies that are set."
    )
    listed.add_argument("--json", action="store_true", help="for programs")
    add_drop_damaged(listed)
    for parser in (set_, unset, listed):
        set_connected(parser, "policy")


def _add_ledger(commands: "argparse._SubParsersAction[Any]") -> None:
    ledger = commands.add_parser(
        "ledger",
        help="show or drop what the ledger says of an exactlyOnce query",
        description="Show the last batch that the ledger knows of a query, or drop its record, if "
        "it cannot be read or somebody else wrote it. Stop the query before. The ledger has "
        "forgotten the query then: see in the topic whether the batch that comes next is there, "
        "as it is written whatever was written before. Other queries keep their records.",
    )
    ledger.add_argument("action", choices=("show", "drop"))
    ledger.add_argument(
        "--query",
        type=nonempty_name,
        required=True,
        help="the id in the file metadata of its checkpoint",
    )
    ledger.add_argument("--ledger-topic", type=nonempty_name, help="the query's option ledgerTopic")
    ledger.add_argument("--dry-run", action="store_true", help="for drop: change nothing")
    ledger.add_argument("--json", action="store_true", help="for programs")
    set_connected(ledger, "ledger")


def _add_assign(commands: "argparse._SubParsersAction[Any]") -> None:
    assign = commands.add_parser(
        "assign",
        help="show what a task assignor answers to situations, given as JSON",
        description="Read situations (tasks, processes, what they have, configs), one JSON object "
        "a line, or a whole file with a list of them as 'cases'. Print one JSON answer a line. "
        "Exit code 2 if a situation could not be read.",
    )
    assign.add_argument("files", nargs="*", metavar="FILE", help="none, or -: read standard input")
    assign.add_argument(
        "--explain", action="store_true", help="tables for people: who got what, what moved and why"
    )
    assign.add_argument(
        "--assignor",
        metavar="NAME",
        help="a built-in one, or the dotted path of a class, instead of what the situations name",
    )
    set_module(assign, "assign")


def _add_doctor(commands: "argparse._SubParsersAction[Any]") -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check that a query has everything it needs, and say what to do if not",
        description="Look at the Python and the PySpark that Spark's workers will use, at the "
        "modules that Spark looks for data sources in, at Java and at kshare's compiled code. With "
        "a broker: login, rights on a topic and on kshare's own topics, clocks, what the cluster "
        "lacks and which of kshare's features that touches, and whether tasks can report to a "
        "planner. With a schema registry: what answers, its mode and compatibility, and which of "
        "kshare's features work with it. With a checkpoint: whether its query has stopped, lost "
        "records, or drops rows behind a watermark. Nothing is made or changed. Exit code 1 if "
        "something is red.",
    )
    doctor.add_argument("--topic", type=nonempty_name, help="a topic that a query shall read")
    doctor.add_argument("--checkpoint", metavar="DIR", help="the checkpointLocation of a query")
    doctor.add_argument(
        "--registry",
        metavar="URL",
        help="address of a schema registry, such as https://registry:8081",
    )
    doctor.add_argument(
        "--registry-config",
        type=Path,
        metavar="FILE",
        help="properties of the registry's client, such as basic.auth.user.info, with or without "
        "schema.registry. in front: the place for passwords",
    )
    doctor.add_argument(
        "--feature",
        action="append",
        default=[],
        choices=FEATURES,
        metavar="NAME",
        help="a feature that the cluster must support, else the exit code is 1: "
        f"{', '.join(FEATURES)}; may be repeated (default: source)",
    )
    doctor.add_argument(
        "--spark",
        action="store_true",
        help="start a Spark session, too, and let it find the source (takes some 20 s)",
    )
    doctor.add_argument("--json", action="store_true", help="for programs")
    set_connected(doctor, "doctor")


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
