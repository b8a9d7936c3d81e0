"""An HTTP call for each record: python examples/handlers_http.py SERVERS TOPIC URL

64 at a time, one after another for each key. Needs httpx, and a topic TOPIC.dlq.
"""

import sys

import httpx

from kshare.group import KeySharedConsumer
from kshare.processing import DeadLetter, Processor, Record, Retry, RetryAfter


def is_worth_another(error: BaseException) -> bool:
    """What the server says of the request itself (400 to 499) stays as it is."""
    return not (isinstance(error, httpx.HTTPStatusError) and error.response.is_client_error)


def main(servers: str, topic: str, url: str) -> None:
    client = httpx.Client(timeout=10)

    def post(order: Record) -> None:  # runs in threads; ``async def`` would run in an event loop
        # An order may be posted again after a crash: by this the server sees that it is the same.
        place = {"Idempotency-Key": f"{order.topic_partition}-{order.offset}"}
        answer = client.post(url, content=order.value, headers=place)
        if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise RetryAfter(float(answer.headers.get("Retry-After", 1)))
        answer.raise_for_status()

    processor = Processor(
        post,
        concurrency=64,
        timeout="30s",
        retry=Retry(attempts=5, on=is_worth_another),
        on_failure=DeadLetter(f"{topic}.dlq"),
    )
    config = {
        "bootstrap.servers": servers,
        "group.id": "orders-to-http",
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
    }
    with client:
        processor.run(KeySharedConsumer(config), [topic])  # until SIGTERM


if __name__ == "__main__":
    main(*sys.argv[1:])
