"""How a consumer reads, as options of the reader."""

from dataclasses import replace

from kshare.group.config.table import ConsumerConfig
from kshare.options import EARLIEST, SOURCE_COLUMNS, SourceOptions
from kshare.options.frozen import FrozenMapping
from kshare.options.model import Assign

__all__ = ["read_options"]


def read_options(config: ConsumerConfig) -> SourceOptions:
    """What the reader of a consumer needs; partitions are named when they are read."""
    columns = dict.fromkeys([*(config.columns or SOURCE_COLUMNS), "offset"])
    if config.explicit or config.measures_load:  # in a rebalance, what is in hand goes by its key
        columns["key"] = None
    largest = max(config.queued_max_kbytes * 1024 // 4, 1)
    kafka = config.kafka
    kafka = replace(kafka, max_partition_fetch_bytes=min(kafka.max_partition_fetch_bytes, largest))
    return SourceOptions(
        topics=Assign(FrozenMapping({})),
        kafka=kafka,
        starting=EARLIEST,
        columns=tuple(columns),
        keys=config.keys,
        include_headers="headers" in columns,
    )
