"""The cases of Kafka's system tests for consumers, on the project's own brokers.

``python -m integration.system_cases [NAME ...]`` runs them all, or those whose names have one of
these texts, and prints a line for each. They are those of kafkatest's ``consumer_test.py``, for
``integration.verifiable_consumer`` (docs/design/histories.md); each with whole partitions, as
Kafka's consumers have them, and with partitions that are shared by key, where that makes a
difference. Beside kafkatest's assertions the judge of :mod:`integration.history` looks at every
record.
"""

import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias

from integration.cluster import KafkaCluster
from integration.members import eventually
from integration.topics import Topics
from integration.verifiable import Feed, Service

__all__ = ["CASES", "consumer_bounce", "consumer_failure", "fencing_static_consumer"]

_BOUNCES: Final = 3
_STATIC_SESSION_MS: Final = 45_000
_SESSION_MS: Final = 30_000
Case: TypeAlias = Callable[[Any, Path], None]
"""Takes brokers and a folder."""


@contextmanager
def service(brokers: Topics, folder: Path, *, copies: int = 1, **kwargs: Any) -> Iterator[Service]:
    """Consumers of a new topic; they are not started."""
    topic = brokers.create_topic(replication=copies)
    with closing(Service(brokers, topic, folder, **kwargs)) as made:
        yield made


@contextmanager
def fed(brokers: Topics, folder: Path, **kwargs: Any) -> Iterator[tuple[Service, Feed]]:
    """The same, with a producer."""
    with service(brokers, folder, **kwargs) as made, made.feed() as feed:
        eventually(lambda: len(feed.sent) > 100)
        yield made, feed


def _end(made: Service, feed: Feed, *, is_clean: bool = True) -> None:
    """All is read; without a kill, each record once, and all is committed."""
    made.read_all(feed)
    made.stop()
    if is_clean:
        assert sum(made.positions.values()) == made.total, "records came twice"
    if made.commits:
        if made.is_shared:  # the stable offset may wait for somebody who has read no more
            assert not (missing := made.uncommitted(feed)), f"{missing[:5]} are not committed"
        else:
            assert made.committed == made.positions, f"{made.committed} {made.positions}"
    made.judge(feed)


def _bounce(
    made: Service, mode: str, *, bounces: int, is_clean: bool = True, keep: int = 0
) -> None:
    """End and start consumers, all at once or one after another."""
    nodes = made.nodes[keep:]
    for _ in range(bounces):
        for chosen in [nodes] if mode == "all" else [[node] for node in nodes]:
            made.stop(chosen, is_clean=is_clean)
            assert len(made.of("dead")) == len(chosen)
            made.start(chosen)
            made.await_members(len(made.nodes))
            made.await_consumed()


def _bounce_brokers(made: Service, brokers: KafkaCluster) -> None:
    for broker in brokers.brokers.values():
        brokers.wait_until_in_sync(made.topic)
        broker.stop()
        broker.start()
        made.await_members(len(made.nodes))
        made.await_consumed()


# -- the cases ------------------------------------------------------------------------------------


def broker_rolling_bounce(brokers: KafkaCluster, folder: Path, *, is_shared: bool) -> None:
    """Brokers are restarted one after another: no rebalance, and nothing comes twice."""
    kwargs: dict[str, Any] = {"copies": 2, "session_ms": _SESSION_MS, "is_shared": is_shared}
    with fed(brokers, folder, **kwargs) as (made, feed):
        made.start()
        made.await_members(3)
        made.await_stable()
        before = made.rebalances()
        _bounce_brokers(made, brokers)
        assert made.rebalances() == before, "there was a rebalance"
        _end(made, feed)


def consumer_bounce(
    brokers: Topics,
    folder: Path,
    *,
    mode: str,
    is_clean: bool,
    is_shared: bool,
    bounces: int = _BOUNCES,
) -> None:
    """Consumers are restarted: after a clean end nothing comes twice."""
    # Who ends cleanly leaves the group; who is just slow must stay in it.
    kwargs: dict[str, Any] = {"session_ms": _SESSION_MS} if is_clean else {}
    with fed(brokers, folder, is_shared=is_shared, **kwargs) as (made, feed):
        made.start()
        made.await_members(3)
        _bounce(made, mode, bounces=bounces, is_clean=is_clean)
        _end(made, feed, is_clean=is_clean)


def static_consumer_bounce(
    brokers: Topics, folder: Path, *, mode: str, is_static: bool, is_shared: bool
) -> None:
    """Of static members that are restarted, those that live notice nothing."""
    kwargs = {"is_static": is_static, "is_shared": is_shared}
    session = _STATIC_SESSION_MS if is_static else 6_000
    with fed(brokers, folder, session_ms=session, **kwargs) as (made, feed):
        made.start()
        made.await_members(3)
        made.await_stable()
        before = made.revokes_of(made.nodes[:1])
        _bounce(made, mode, bounces=_BOUNCES, keep=1)
        revokes = made.revokes_of(made.nodes[:1]) - before
        assert (revokes == 0) or not is_static, f"{revokes} partitions were revoked"
        if not is_static and is_shared:
            assert revokes
        _end(made, feed)


def static_consumer_persisted_after_rejoin(
    brokers: KafkaCluster, folder: Path, *, mode: str
) -> None:
    """The id that a static member has got by its restart survives that of the coordinator."""
    kwargs: dict[str, Any] = {"copies": 2, "is_static": True, "session_ms": _STATIC_SESSION_MS}
    with fed(brokers, folder, **kwargs) as (made, feed):
        made.start()
        made.await_members(3)
        _bounce(made, mode, bounces=1)
        _bounce_brokers(made, brokers)
        _end(made, feed)


def fencing_static_consumer(
    brokers: Topics, folder: Path, *, conflicts: int, stage: str, is_shared: bool
) -> None:
    """Of two static members with one id, the later one lives, and the other one ends."""
    kwargs: dict[str, Any] = {"is_static": True, "is_shared": is_shared, "session_ms": _SESSION_MS}
    with fed(brokers, folder, **kwargs) as (made, feed), ExitStack() as stack:
        others = stack.enter_context(closing(made.conflicting(conflicts)))
        if stage == "stable":
            made.start()
            made.await_members(3)
            made.await_stable()
            others.start()
            others.await_members(conflicts)
            eventually(lambda: len(made.of("dead")) == conflicts)
        else:
            made.start()
            others.start()

        def joined() -> int:
            return len(made.of("joined")) + len(others.of("joined"))

        eventually(lambda: joined() == 3)
        eventually(lambda: len(made.of("dead")) + len(others.of("dead")) == conflicts)
        made.read_all(feed, others)
        made.stop()
        others.stop()
        made.judge(feed, more=others.nodes)


def consumer_failure(
    brokers: Topics, folder: Path, *, is_clean: bool, auto_commit: bool, is_shared: bool
) -> None:
    """The owner of the partition ends or is killed: another one goes on."""
    kwargs = {"auto_commit": auto_commit, "is_shared": is_shared}
    with service(brokers, folder, **kwargs) as made:
        made.start()
        made.await_members(3)
        made.await_stable()
        victim = made.owner()
        with made.feed() as feed:
            eventually(lambda: len(feed.sent) > 300)
            made.await_consumed()
            made.stop([victim], is_clean=is_clean)
            made.await_members(2)
            eventually(lambda: bool(made.assignments()))
            made.await_consumed(600)
            _end(made, feed, is_clean=is_clean)


def broker_failure(
    brokers: KafkaCluster, folder: Path, *, is_clean: bool, auto_commit: bool, is_shared: bool
) -> None:
    """A broker ends or is killed: no rebalance, and nothing comes twice."""
    kwargs: dict[str, Any] = {"auto_commit": auto_commit, "is_shared": is_shared, "copies": 2}
    with fed(brokers, folder, session_ms=_SESSION_MS, **kwargs) as (made, feed):
        made.start()
        made.await_members(3)
        made.await_stable()
        made.await_consumed()
        before = made.rebalances()
        victim = brokers.brokers[2]  # the other one is the controller, too
        brokers.wait_until_in_sync(made.topic)
        if is_clean:
            victim.stop()
        else:
            brokers.kill9(2)
        try:
            made.await_consumed(600)
            assert made.rebalances() == before, "there was a rebalance"
            _end(made, feed)
        finally:
            victim.start()


def group_consumption(brokers: Topics, folder: Path, *, is_shared: bool) -> None:
    """Consumers join one by one, and leave one by one: all is read at any time."""
    with fed(brokers, folder, is_shared=is_shared) as (made, feed):
        for count, node in enumerate(made.nodes, 1):
            made.start([node])
            made.await_members(count)
            made.await_consumed()
        for count, node in enumerate(made.nodes[:-1], 1):
            made.stop([node])
            made.await_members(len(made.nodes) - count)
            made.await_consumed()
        _end(made, feed)


def valid_assignment(brokers: Topics, folder: Path) -> None:
    """Each of six partitions is assigned to one consumer, however many there are."""
    topic = brokers.create_topic(partitions=6)
    with closing(Service(brokers, topic, folder)) as made:
        for count, node in enumerate(made.nodes, 1):
            made.start([node])
            made.await_members(count)
            eventually(lambda: made.assignments() == [*range(6)], 30)


def _cases() -> Iterator[tuple[str, Case]]:
    both, modes = (False, True), ("all", "rolling")

    def named(case: Callable[..., None], **kwargs: Any) -> tuple[str, Case]:
        values = ", ".join(f"{name}={value}" for name, value in kwargs.items())
        return f"{case.__name__}[{values}]", partial(case, **kwargs)

    for shared in both:
        yield named(broker_rolling_bounce, is_shared=shared)
    for mode, clean, shared in product(modes, both, both):
        yield named(consumer_bounce, mode=mode, is_clean=clean, is_shared=shared)
    for mode, static, shared in product(modes, both, both):
        yield named(static_consumer_bounce, mode=mode, is_static=static, is_shared=shared)
    for mode in modes:
        yield named(static_consumer_persisted_after_rejoin, mode=mode)
    for conflicts, stage, shared in product((1, 2), ("stable", "all"), both):
        yield named(fencing_static_consumer, conflicts=conflicts, stage=stage, is_shared=shared)
    for clean, auto, shared in product(both, both, both):
        yield named(consumer_failure, is_clean=clean, auto_commit=auto, is_shared=shared)
    for clean, auto, shared in product(both, both, both):
        yield named(broker_failure, is_clean=clean, auto_commit=auto, is_shared=shared)
    for shared in both:
        yield named(group_consumption, is_shared=shared)
    yield named(valid_assignment)


CASES: Final[dict[str, Case]] = dict(_cases())


def main(wanted: Sequence[str]) -> int:
    """Run cases, and return how many have failed."""
    config = {
        "offsets.topic.num.partitions": "8",
        "offsets.topic.replication.factor": "2",
        "min.insync.replicas": "1",
        "broker.session.timeout.ms": "6000",
    }
    failed = done = 0
    with tempfile.TemporaryDirectory() as place, KafkaCluster(2, config=config) as brokers:
        for name, case in CASES.items():
            if wanted and not any(text in name for text in wanted):
                continue
            folder, began = Path(place) / f"{done:03}", time.monotonic()
            folder.mkdir()
            done += 1
            shown = io.StringIO()  # what consumers have logged
            try:
                with redirect_stdout(shown):
                    case(brokers, folder)
                verdict = "ok"
            except Exception as error:
                failed, verdict = failed + 1, f"FAILED {type(error).__name__}: {error}"
                print(shown.getvalue())
            print(f"{name}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{done - failed} of {done} pass")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 100))
