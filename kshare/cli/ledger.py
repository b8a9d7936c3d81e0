"""``kshare ledger``: the last batch of an ``exactlyOnce`` query, shown or deleted.

Guarantee: a record is deleted only after it was read, or was found to be none that can be read.
"""

import argparse

from kshare.cli.connection import needed_kafka_config
from kshare.cli.output import Answer, line_of
from kshare.errors import CheckpointVersionError, LedgerRecordError
from kshare.kafka.topics import LEDGER_TOPIC
from kshare.query.produce.ledger import LedgerRecord

__all__ = ["run"]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Answer:
    """Run the command; the exit code of ``show`` is 1 if the record cannot be read."""
    kafka = needed_kafka_config(parser, arguments)
    is_drop = arguments.action == "drop"
    with LedgerRecord(kafka, arguments.query, arguments.ledger_topic or LEDGER_TOPIC) as record:
        said, is_damaged, state = "nothing", False, None
        try:
            state = record.read()
        # Of the record alone: what Kafka refused, or left unanswered, says nothing of it.
        except (LedgerRecordError, CheckpointVersionError) as error:
            said, is_damaged = str(error), True
        else:
            if state is not None:
                rows = f"{state.rows:,}" if state.entries else "an unknown number of"
                said = f"batch {state.batch} of run {state.run}, with {rows} rows"
        is_there = is_damaged or state is not None
        is_dropped = is_drop and is_there and not arguments.dry_run
        if is_dropped:
            record.drop()
    fields = {"query": arguments.query, "said": said, "damaged": is_damaged, "dropped": is_dropped}
    text = line_of(f"query {arguments.query}: {said}")
    if is_drop and not is_there:  # the id may be misspelt
        text += "nothing to delete\n"
    elif is_drop:
        text += "deleted\n" if is_dropped else "nothing was changed (--dry-run)\n"
    return Answer(fields, text, int(is_damaged and not is_drop))
