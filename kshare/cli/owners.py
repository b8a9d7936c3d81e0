"""``kshare owners``: which process of a group owns a key, or each range of key hashes."""

import argparse
from contextlib import closing
from typing import Any

from kshare.cli.connection import log_topic, needed_kafka_config
from kshare.cli.output import Answer, counted, line_of, text_table
from kshare.cli.show import CHUNKS_TEXT
from kshare.core.hashing import key_hash
from kshare.core.progress import TopicPartition
from kshare.errors import UnknownGroupError
from kshare.group.protocol.owners.range_owners import LivingMember, RangeOwner
from kshare.group.tools.offsets import GroupOffsets
from kshare.group.tools.owners import GroupOwners, OwnerTable, host_info

__all__ = ["run"]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Answer:
    """Run the command; the exit code is 1 if nobody owns the key."""
    kafka = needed_kafka_config(parser, arguments)
    if arguments.key is not None and arguments.topic is None:
        parser.error("--key needs --topic")
    if arguments.key is None and (arguments.hex or arguments.partition is not None):
        parser.error("--hex and --partition need --key")
    key = None if arguments.key is None else _key(parser, arguments)
    log = log_topic(arguments, kafka)
    with GroupOwners(arguments.group, kafka, log) as owners:
        partition = None
        if key is not None:
            if arguments.partition is not None:
                _check_partition(parser, arguments, owners.count(arguments.topic))
            partition = owners.partition(arguments.topic, key, arguments.partition)
        table = owners.read()
        if not table.owners:
            with closing(GroupOffsets(arguments.group, kafka, log)) as offsets:
                offsets.check_log(offsets.snapshot())
        if not table.is_known:
            raise UnknownGroupError(arguments.group, log)
        if key is None or partition is None:
            return _all(arguments, table)
        return _one(table, partition, key)


def _key(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> bytes:
    if not arguments.hex:  # what is not UTF-8 on the command line comes as it was typed
        return bytes(arguments.key.encode("utf-8", "surrogateescape"))
    try:
        return bytes.fromhex(arguments.key)
    except ValueError:
        parser.error(f"argument --key: not hexadecimal: {arguments.key!r}")


def _check_partition(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, count: int
) -> None:
    if not 0 <= arguments.partition < count:
        parser.error(
            f"argument --partition: topic {arguments.topic} has no partition "
            f"{arguments.partition}; wanted 0 to {count - 1}"
        )


def _one(table: OwnerTable, partition: TopicPartition, key: bytes) -> Answer:
    hash_ = key_hash(key, 0)
    member = table.member(partition, hash_)
    fields = {**partition._asdict(), "hash": hash_, **_member_json(member)}
    who = "nobody" if member is None else f"{member.name} on {member.host}"
    if member is None and partition in table.chunks:
        members = len(table.chunks[partition])
        share = "shares" if members == 1 else "share"
        who += f", as {counted(members, 'member')} {share} it ({CHUNKS_TEXT})"
    text = line_of(f"{partition}, key hash {hash_}: {who}")
    return Answer(fields, text, 1 if member is None else 0)


def _all(arguments: argparse.Namespace, table: OwnerTable) -> Answer:
    wanted = [each for each in table.owners if arguments.topic in {None, each.partition.topic}]
    shared = {tp: each for tp, each in table.chunks.items() if arguments.topic in {None, tp.topic}}
    rows = [_range_json(each, table) for each in wanted]
    lines = [("partition", "key hashes", "leased", "done", "member", "host")]
    for each in wanted:
        host = table.members[each.member].host
        lines.append((str(each.partition), each.hashes.as_percent(), "", "", each.member, host))
    for tp, shares in shared.items():
        for name, share in shares.items():
            member = table.members[name]
            chunks = {"leased": share.leased, "done": share.done}
            rows.append({**tp._asdict(), "hashes": None, **_member_json(member), "chunks": chunks})
            counts = (f"{share.leased:,}", f"{share.done:,}")
            lines.append((str(tp), CHUNKS_TEXT, *counts, name, member.host))
    if not rows:
        return Answer(rows, line_of(f"nobody owns key hashes in group {arguments.group}"))
    return Answer(rows, text_table(lines, right=(2, 3)))


def _range_json(owner: RangeOwner, table: OwnerTable) -> dict[str, Any]:
    return {
        **owner.partition._asdict(),
        "hashes": [owner.hashes.lo, owner.hashes.hi],
        **_member_json(table.members[owner.member]),
    }


def _member_json(member: LivingMember | None) -> dict[str, Any]:
    if member is None:
        return {"member": None, "host": None, "port": None}
    address = host_info(member.host)
    host, port = (member.host, None) if address is None else address
    return {"member": member.name, "host": host, "port": port}
