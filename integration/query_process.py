"""A query's member: ``python -m integration.query_process SERVERS TOPIC GROUP LOG FILE``.

It says of ever more records that they are processed, as a query does after each batch, up to a
number, and then the same again. It appends a line with each number, and ``fenced`` at the end if
another member has worked in its place; then it exits with 3.
"""

import time
from pathlib import Path

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import FencedError
from kshare.group.config.consumer_config import consumer_config
from kshare.group.query_member import QueryMember

BATCHES, RECORDS = 5, 10
"""How many batches it has processed at last, and the records of each."""
FENCED = 3


def main(servers: str, topic: str, group: str, log: str, file: str) -> int:
    config = consumer_config({"bootstrap.servers": servers, "group.id": group})
    query = QueryMember(config.kafka, group, lambda _: ALL_HASHES, log_topic=log)
    number = 0
    with Path(file).open("a", buffering=1) as out:
        while True:
            number = min(number + 1, BATCHES)
            try:
                query.commit({TopicPartition(topic, 0): Progress.at(number * RECORDS)})
                query.flush(1.0)
            except FencedError as error:
                out.write(f"fenced {error}\n")
                return FENCED
            out.write(f"{number * RECORDS}\n")
            time.sleep(0.05)
