"""Each key's newest record in a database: python examples/handlers_database.py SERVERS TOPIC DB

Up to 500 records are one transaction. One that comes again, or that is older, changes nothing.
"""

import sqlite3
import sys
from contextlib import closing

from kshare.group import KeySharedConsumer
from kshare.processing import Processor, Record

TABLE = """CREATE TABLE IF NOT EXISTS customers
    (customer BLOB PRIMARY KEY, value BLOB, partition INT, offset INT)"""
UPSERT = """INSERT INTO customers VALUES (?, ?, ?, ?)
    ON CONFLICT (customer) DO UPDATE SET value = excluded.value, offset = excluded.offset
    WHERE excluded.offset > offset"""


def main(servers: str, topic: str, file: str) -> None:
    def upsert(records: list[Record]) -> None:  # a plain function runs in a thread
        rows = [(each.key, each.value, each.partition, each.offset) for each in records]
        with closing(sqlite3.connect(file, timeout=30)) as database, database:
            database.executemany(UPSERT, rows)

    with closing(sqlite3.connect(file)) as database:
        database.execute(TABLE)
    # SQLite has one writer at a time; another database may have more. What it refuses stops the
    # processor (on_failure=Stop()), and stays pending.
    processor = Processor(upsert, on_batch=True, batch_size=500, concurrency=1)
    config = {
        "bootstrap.servers": servers,
        "group.id": "customers-to-database",
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
    }
    processor.run(KeySharedConsumer(config), [topic])  # until SIGTERM


if __name__ == "__main__":
    main(*sys.argv[1:])
