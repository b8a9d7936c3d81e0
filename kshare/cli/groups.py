"""``kshare groups``: the groups that have a log, or the members, ranges and lags of one."""

import argparse
from collections.abc import Sequence
from typing import Any

from kshare.cli.connection import log_topic, needed_kafka_config
from kshare.cli.output import Answer, complain, counted, text_table
from kshare.cli.show import CHUNKS_TEXT
from kshare.group.tools.owners import host_info
from kshare.group.tools.status import (
    GroupStatus,
    GroupSummary,
    MemberLoad,
    MemberStatus,
    RangeLag,
    group_status,
    list_groups,
)
from kshare.monitor.plot import draw_partitions
from kshare.monitor.status import partition_status
from kshare.options import KafkaConfig

__all__ = ["facts_text", "member_json", "run"]

MEMBER_COLUMNS = ("  member", "ranges", "lag", "leased", "done", "client id", "address", "host")
_RANGE_COLUMNS = ("  partition", "key hashes", "position", "lag", "member")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Answer:
    """Run the command."""
    kafka = needed_kafka_config(parser, arguments)
    if arguments.plot is not None and arguments.group is None:
        parser.error("--plot draws one group: give --group")
    if arguments.group is None:
        return _all(list_groups(kafka, log_topic(arguments, kafka)))
    return _one(kafka, arguments)


def _all(groups: Sequence[GroupSummary]) -> Answer:
    rows = [
        {
            "group": each.group,
            "state": each.state,
            "members": each.members,
            "partitions": [list(tp) for tp in each.partitions],
        }
        for each in groups
    ]
    if not groups:
        return Answer(rows, "no group has committed anything\n")
    table = [("group", "state", "members", "partitions", "topics")]
    for each in groups:
        topics = ", ".join(dict.fromkeys(tp.topic for tp in each.partitions))
        counts = (f"{each.members:,}", f"{len(each.partitions):,}")
        table.append((each.group, each.state, *counts, topics))
    return Answer(rows, text_table(table, right=(2, 3)))


def _one(kafka: KafkaConfig, arguments: argparse.Namespace) -> Answer:
    status = group_status(kafka, arguments.group, log_topic(arguments, kafka))
    for warning in status.warnings:
        complain(f"warning: {warning}")
    if arguments.plot is not None:
        shown = [
            partition_status(tp, done, status.logs.get(tp)) for tp, done in status.progress.items()
        ]
        draw_partitions(f"group {arguments.group}", shown, arguments.plot)
    return Answer(_as_json(status), _as_text(status))


def _as_json(status: GroupStatus) -> dict[str, Any]:
    return {
        "group": status.group,
        "state": status.state,
        "epoch": status.epoch,
        "generation": status.generation,
        "leader": status.leader,
        "keeps_log": status.keeps_log,
        "members": [member_json(each) for each in status.members],
        "ranges": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "hashes": [each.hashes.lo, each.hashes.hi],
                "member": each.member,
                "position": each.position,
                "lag": each.lag,
            }
            for each in status.ranges
        ],
        "chunks": [
            {**tp._asdict(), "member": member, "leased": share.leased, "done": share.done}
            for tp, shares in status.chunks.items()
            for member, share in shares.items()
        ],
    }


def member_json(each: MemberStatus) -> dict[str, Any]:
    """A member for programs."""
    return {
        "member": each.member.name,
        "member_id": each.member.member_id or None,
        "client_id": each.joined.client_id if each.joined else None,
        "instance_id": each.joined.instance_id if each.joined else None,
        "address": each.joined.host if each.joined else None,
        "host": each.member.host,
        "application_server": each.member.host if host_info(each.member.host) else None,
    }


def facts_text(status: GroupStatus) -> str:
    """The state of a group in one line of text."""
    facts = [status.state]
    if status.is_plain:
        facts.append("whole partitions (a member is no kshare consumer)")
    elif not status.keeps_log:
        facts.append("no log (whole partitions, by the coordinator)")
    elif status.epoch is not None:
        facts.append(f"epoch {status.epoch:,} (generation {status.generation:,})")
    facts.append(counted(len(status.members), "member"))
    return ", ".join(facts)


def _as_text(status: GroupStatus) -> str:
    facts = [facts_text(status)]
    known = [each.lag for each in status.ranges if each.lag is not None]
    if known:
        facts.append(f"lag {sum(known):,}")
    text = f"group {status.group}: {', '.join(facts)}\n"
    if status.members:
        rows = [MEMBER_COLUMNS, *(_member_row(*each) for each in status.loads())]
        text += "\n" + text_table(rows, right=(1, 2, 3, 4))
    if status.ranges:
        rows = [_RANGE_COLUMNS, *(_range_row(status, each) for each in status.ranges)]
        text += "\n" + text_table(rows, right=(2, 3))
    return text


def _member_row(each: MemberStatus, load: MemberLoad) -> tuple[str, ...]:
    return (
        f"  {each.member.name}",
        f"{load.ranges:,}" if load.ranges or load.leased is None else "",
        "" if load.lag is None else f"{load.lag:,}",
        "" if load.leased is None else f"{load.leased:,}",
        "" if load.done is None else f"{load.done:,}",
        each.joined.client_id if each.joined else "" if each.member.is_joined else "(not joined)",
        each.joined.host if each.joined else "",
        each.member.host,
    )


def _range_row(status: GroupStatus, each: RangeLag) -> tuple[str, ...]:
    shares = status.chunks.get(each.partition)
    return (
        f"  {each.partition}",
        each.hashes.as_percent() if shares is None else CHUNKS_TEXT,
        "" if each.position is None else f"{each.position:,}",
        "" if each.lag is None else f"{each.lag:,}",
        each.member or (f"({len(shares):,} share it)" if shares else "(nobody)"),
    )
