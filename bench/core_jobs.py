"""What the checkpoint and planning cost, without Kafka and without Spark.

``python -m bench.core_jobs``
"""

import base64
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kshare.assignment import load_range_assignor
from kshare.core.checkpoint import BatchOffsets, decode, encode
from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.core.slicing import PartitionLoad, check_plan, plan_by_key
from kshare.core.tasks import pack, records_of
from kshare.group.protocol.commit_log.record_codec import encode as encode_record
from kshare.group.protocol.membership.subscription import (
    Subscription,
    encode_subscription,
    in_order,
)
from kshare.group.protocol.plan.generation import plan_generation
from kshare.group.protocol.plan.group_plan import plan_group

PLACE = TopicPartition("t", 0)


def seconds(job: Callable[[], object], runs: int) -> list[float]:
    """Times of a job, after one warm-up."""
    job()
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        job()
        times.append(time.perf_counter() - began)
    return times


def random_commits(count: int, offsets: int) -> list[Rectangle]:
    chance = random.Random(1)
    starts = (chance.randrange(1, offsets) for _ in range(count))
    return [Rectangle(OffsetRange(at, at + 1 + chance.randrange(4)), WHOLE) for at in starts]


def random_gaps(count: int) -> Progress:
    """``count`` processed stretches with gaps between them, 10 offsets each on average."""
    chance = random.Random(2)
    at, bounds = 1, []
    for _ in range(count):
        start = at + 1 + chance.randrange(19)
        end = start + 1 + chance.randrange(19)
        bounds.append(Rectangle(OffsetRange(start, end), WHOLE))
        at = end
    return Progress.of(0, bounds)


def plan(partitions: int) -> Callable[[], int]:
    """Plan partitions in 8 ranges each, and check the plan."""
    assignor = load_range_assignor("round-robin")

    def job() -> int:
        loads = [
            PartitionLoad("t", number, Progress.at(number % 1000).pending(100_000))
            for number in range(partitions)
        ]
        slices = plan_by_key(loads, assignor, min_tasks=None, key_ranges=8)
        check_plan(loads, slices)
        return len(slices)

    return job


def pack_slices(count: int) -> Callable[[], int]:
    """Plan as many partitions in one range each, and pack their slices into tasks."""
    assignor = load_range_assignor("round-robin")

    def job() -> int:
        loads = [
            PartitionLoad("t", number, Progress.at(number % 1000).pending(100_000))
            for number in range(count)
        ]
        slices = plan_by_key(loads, assignor, min_tasks=None, key_ranges=1)
        return len(pack(slices, [records_of(each) for each in slices], 8))

    return job


def plan_members(
    members: int, partitions: int, *, own: bool = True, join: int = 0, leave: int = 0
) -> Callable[[], int]:
    """Plan a generation of a group, and encode its epoch and what each member is sent.

    Args:
        members: Number of members.
        partitions: Number of partitions of their topic.
        own: Whether they have been given all of them before; else it is a group's first generation.
        join: Number of members that come, and own nothing.
        leave: Number of members that have gone.
    """
    group = {f"m-{i:04}": Subscription(f"host-{i:04}", ("t",)) for i in range(members)}
    if own:
        given = plan_group(group, {"t": partitions})
        for member, said_first in group.items():
            owned, target = in_order(given.now[member]), in_order(given.target[member])
            group[member] = replace(said_first, owned=owned, target=target, epoch=1)
    for member in list(group)[:leave]:
        del group[member]
    group |= {f"z-{i:04}": Subscription(f"new-{i:04}", ("t",)) for i in range(join)}
    said = {member: encode_subscription(each) for member, each in group.items()}

    def job() -> int:
        generation = plan_generation(2, "host-0005", said, {"t": partitions})
        _, value = encode_record("g", generation.epoch)
        return len(value) + sum(map(len, generation.assignments(1, "x").values()))

    return job


def member_jobs() -> list[tuple[str, Callable[[], int], float]]:
    """The plans of a group's leader: name, job, limit in seconds."""
    name, many = "plan 1,000 members x 10,000 partitions of a group", partial(plan_members, 1_000)
    return [
        (name, many(10_000, own=False), 1.0),
        (f"{name}: steady", many(10_000), 1.0),
        (f"{name}: one leaves", many(10_000, leave=1), 1.0),
        (f"{name}: one joins", many(10_000, join=1), 1.0),
        (f"{name}: 100 join", many(10_000, join=100), 1.0),
        ("plan 1,000 members x 1 partition of a group: one joins", many(1, join=1), 2.0),
    ]


def measure(runs: int) -> list[tuple[str, float, str, str, bool]]:
    """Rows: what, value, how it is shown, target, whether it is met."""
    commits = random_commits(100_000, 1_000_000)
    gaps = random_gaps(1_000_000)
    told = encode(BatchOffsets({PLACE: gaps}))
    packed = len(told["@kshare"]["ic"]["t"]["0"][0]["o"]) / gaps.gaps
    raw = len(base64.b64decode(told["@kshare"]["ic"]["t"]["0"][0]["o"])) / gaps.gaps
    rows = []
    for name, job, limit in (
        ("100,000 random commits over 1 M offsets", lambda: Progress.at(0).commit(commits), 1.0),
        ("1 M gaps decoded", lambda: decode(told), 1.0),
        ("plan 10,000 partitions x 8 ranges", plan(10_000), 1.0),
        ("plan 5,000 partitions x 8 ranges", plan(5_000), 0.5),
        *member_jobs(),
        ("plan 10,000 slices, and pack them into 8 tasks", pack_slices(10_000), 0.3),
    ):
        times = seconds(job, runs)
        shown = f"{min(times):.2f} ({statistics.median(times):.2f}) s"
        met = statistics.median(times) < limit
        rows.append((name, min(times), shown, f"< {limit} s", met))
    name = f"bytes a gap in the checkpoint, base64 ({raw:.2f} packed)"
    rows.append((name, packed, f"{packed:.2f}", "<= 3", packed <= 3))
    return rows


if __name__ == "__main__":
    for name, _, shown, target, met in measure(5):
        print(f"| {name} | {shown} | {target} | {'yes' if met else 'NO'} |")
