"""Which consumers and topics a processor takes."""

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.errors import ConsumerClosedError, OptionsError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import DeadLetter, Processor
from kshare.processing.runner import Runner


def test_a_consumer_that_does_not_fit_is_refused(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made = consumer(allow__individual__commit=True, enable__auto__commit=False)
    with pytest.raises(OptionsError) as error:
        Runner(Processor(print), made, None)
    assert [problem.split(":")[0] for problem in error.value.problems] == ["enable.auto.commit"]
    implicit = consumer(acknowledgement__mode="implicit")
    with pytest.raises(OptionsError, match=r"acknowledgement\.mode: is implicit"):
        Runner(Processor(print), implicit, None)


def test_typed_columns_are_refused_as_a_handler_is_given_bytes(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    typed = consumer(value__format="json", value__schema="qty INT", key__format="string")
    with pytest.raises(OptionsError) as error:
        Runner(Processor(print), typed, None)
    assert error.value.problems == tuple(
        f"{column}.format: makes typed columns for consume_batch, and a handler is given bytes; "
        f"leave it out, and give Processor a {column}_deserializer"
        for column in ("key", "value")
    )


def test_the_order_of_partitions_needs_a_consumer_that_has_whole_ones(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    with pytest.raises(OptionsError, match=r"set allow\.individual\.commit=false"):
        Runner(Processor(print, order="partition"), consumer(), None)
    whole = consumer(allow__individual__commit=False)
    Runner(Processor(print, order="partition"), whole, None)


@pytest.mark.parametrize("topics", ["orders", re.compile("orders.*"), ["orders", "^returns"]])
def test_topics_are_subscribed_as_the_consumer_takes_them(
    consumer: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch, topics: Any
) -> None:
    """A text is one topic, not each of its letters."""
    made, given = consumer(), list[Any]()

    def subscribe(topics: Any, **listeners: Any) -> None:
        given.append(topics)
        raise ConsumerClosedError

    monkeypatch.setattr(made, "subscribe", subscribe)
    Processor(print).run(made, topics)
    assert given == [topics]


def test_a_consumer_that_has_subscribed_itself_is_refused(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    """Nobody would tell the processor which key hashes go to others."""
    made = consumer()
    made.receiver.subscriber = Mock()
    with pytest.raises(OptionsError, match=r"give topics to Processor\.run.* or call assign\(\)"):
        Runner(Processor(print), made, None)
    Runner(Processor(print), made, "orders")
    made.receiver.subscriber = None


@pytest.mark.parametrize(
    ("topics", "is_read"),
    [("orders", False), (["orders", "dlq"], True), ("^d", True), ([re.compile("l")], True)],
)
def test_the_topic_of_its_own_dead_letters_is_not_read(
    consumer: Callable[..., KeySharedConsumer], topics: Any, *, is_read: bool
) -> None:
    processor, made = Processor(print, on_failure=DeadLetter("dlq")), consumer()
    if not is_read:
        Runner(processor, made, topics)
        return
    with pytest.raises(OptionsError, match="the processor would read dlq, where on_failure"):
        Runner(processor, made, topics)


def test_dead_letters_of_what_is_assigned_go_elsewhere(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    with pytest.raises(OptionsError, match="the processor would read orders"):
        Runner(Processor(print, on_failure=DeadLetter("orders")), consumer(), None)


def test_the_columns_that_a_dead_letter_has_are_read(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made = consumer(columns="key,value,offset,timestamp")
    with pytest.raises(OptionsError, match="columns: has no headers; a dead letter has them"):
        Runner(Processor(print, on_failure=DeadLetter("dlq")), made, None)
    Runner(Processor(print), made, None)
