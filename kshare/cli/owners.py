"""``kshare owners``: which process of a group owns a key, or each range of key hashes."""

import argparse
import json
import sys
from typing import Any

from kshare.cli.connection import is_given, kafka_config
from kshare.cli.show import hashes_text
from kshare.cli.table import text_table
from kshare.core.hashing import key_hash
from kshare.group.owners import GroupOwners, OwnerTable, host_info
from kshare.group.protocol.range_owners import LivingMember, RangeOwner

__all__ = ["run"]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code: 1 if nobody owns the key."""
    if not is_given(arguments):
        parser.error("which cluster? Give --bootstrap-servers, or --kafka-config")
    if arguments.key is not None and arguments.topic is None:
        parser.error("--key needs --topic")
    if arguments.key is None and (arguments.hex or arguments.partition is not None):
        parser.error("--hex and --partition need --key")
    key = None if arguments.key is None else _key(parser, arguments)
    kafka = kafka_config(arguments)
    with GroupOwners(arguments.group, kafka, arguments.log_topic) as owners:
        if key is None:
            _show_all(arguments, owners.read())
            return 0
        return _show_owner(arguments, owners, key)


def _key(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> bytes:
    if not arguments.hex:  # what is not UTF-8 on the command line comes as it was typed
        return bytes(arguments.key.encode("utf-8", "surrogateescape"))
    try:
        return bytes.fromhex(arguments.key)
    except ValueError:
        parser.error(f"argument --key: not hexadecimal: {arguments.key!r}")


def _show_owner(arguments: argparse.Namespace, owners: GroupOwners, key: bytes) -> int:
    partition = owners.partition(arguments.topic, key, arguments.partition)
    hash_ = key_hash(key, 0)
    member = owners.read().member(partition, hash_)
    if arguments.json:
        shown = {
            "topic": partition.topic,
            "partition": partition.partition,
            "hash": hash_,
            **_member_json(member),
        }
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        who = "nobody" if member is None else f"{member.name} on {member.host}"
        sys.stdout.write(f"{partition}, key hash {hash_}: {who}\n")
    return 1 if member is None else 0


def _show_all(arguments: argparse.Namespace, table: OwnerTable) -> None:
    wanted = [each for each in table.owners if arguments.topic in {None, each.partition.topic}]
    if arguments.json:
        rows = [_range_json(each, table) for each in wanted]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    elif not wanted:
        sys.stdout.write(f"nobody owns key hashes in group {arguments.group}\n")
    else:
        rows_of_text = [("partition", "key hashes", "member", "host")]
        for each in wanted:
            host = table.members[each.member].host
            shares = hashes_text(each.hashes)
            rows_of_text.append((str(each.partition), shares, each.member, host))
        sys.stdout.write(text_table(rows_of_text))


def _range_json(owner: RangeOwner, table: OwnerTable) -> dict[str, Any]:
    return {
        "topic": owner.partition.topic,
        "partition": owner.partition.partition,
        "hashes": [owner.hashes.lo, owner.hashes.hi],
        **_member_json(table.members[owner.member]),
    }


def _member_json(member: LivingMember | None) -> dict[str, Any]:
    if member is None:
        return {"member": None, "host": None, "port": None}
    address = host_info(member.host)
    host, port = (member.host, None) if address is None else address
    return {"member": member.name, "host": host, "port": port}
