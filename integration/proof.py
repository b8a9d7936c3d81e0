"""What ``make test`` shows with a real Kafka and a real Spark: ``python -m integration.proof``.

These are tests of ``make test-all``, about one for each promise. More arguments are pytest's.
"""

import subprocess
import sys
from collections.abc import Mapping

from integration.jars import ROOT

BATCH = "integration/test_differential_batch.py"
STREAM = "integration/test_differential_stream.py"
SINK = "integration/test_differential_sink.py"
PROOF: Mapping[str, tuple[str, ...]] = {
    "a batch as Spark's own source reads it": (
        f"{BATCH}::test_rows[headers]",
        f"{BATCH}::test_rows[subscribePattern]",
        f"{BATCH}::test_rows[both offsets]",
        f"{BATCH}::test_rows[startingOffsetsByTimestamp]",
        f"{BATCH}::test_rows[minPartitions, by offset]",
        f"{BATCH}::test_rows[read_committed]",
        f"{BATCH}::test_rows[compacted]",
        f"{BATCH}::test_rows[zstd]",
        f"{BATCH}::test_filters[pushed-both]",
        f"{BATCH}::test_refused[offsets that are gone]",
    ),
    "a stream as Spark's own source reads it": (
        f"{STREAM}::test_rows_of_each_batch[maxOffsetsPerTrigger]",
        f"{STREAM}::test_rows_of_each_batch[minPartitions]",
        f"{STREAM}::test_rows_of_each_batch[transactions]",
        f"{STREAM}::test_restarts",
        f"{STREAM}::test_one_checkpoint_in_turn",
        f"{STREAM}::test_new_partitions",
        f"{STREAM}::test_a_trimmed_log[true]",
    ),
    "records as Spark's own sink writes them": (
        f"{SINK}::test_records[headers-true]",
        f"{SINK}::test_records[null keys and values-true]",
        f"{SINK}::test_keys_go_where_javas_producer_puts_them",
        f"{SINK}::test_a_partition_of_its_own",
        f"{SINK}::test_a_stream_and_its_restart",
    ),
    'a checkpoint from format("kafka") to format("kshare") and back': (
        "integration/test_checkpoint.py::test_from_sparks_source_and_back",
        "integration/test_checkpoint.py::test_ours_begins_and_sparks_goes_on",
    ),
    "a query that is killed": (
        "integration/test_checkpoint.py::test_a_driver_is_killed_in_batch_0_and_later[0]",
        "integration/test_range_kills.py::test_kills_with_ranges_at_different_offsets[some]",
        "integration/test_sink.py::test_drivers_and_workers_are_killed[one]",
    ),
    "processes of a group that join, leave and are killed": (
        "integration/test_consumer.py::test_processes_are_killed_at_random_points[1]",
        "integration/test_group_membership.py::test_members_join_and_leave",
        "integration/test_group_membership.py::test_a_killed_member_is_replaced",
        "integration/test_group_transactions.py::test_members_that_are_killed_amid_transactions",
        "integration/test_processing.py::test_what_was_handled_and_then_the_dead_letters_are_what_was_produced",
    ),
    "TLS with SASL": (
        "integration/test_security.py::test_the_planner_and_the_reader[SASL_SSL-SCRAM-SHA-512]",
        "integration/test_security.py::test_through_spark",
    ),
    "the demo": ("integration/test_demo.py::test_the_demo_runs_and_finds_everything_in_order",),
}


def main(more: list[str]) -> int:
    """Run them, and return pytest's exit code."""
    tests = [test for tests in PROOF.values() for test in tests]
    command = [sys.executable, "-m", "pytest", "--one-spark", *more, *tests]
    return subprocess.run(command, check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
