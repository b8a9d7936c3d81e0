"""A member of a group with asyncio: python examples/consumer_async.py SERVERS TOPIC"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from kshare.group import AsyncKeySharedConsumer, Message


async def bill(message: Message) -> None:
    print(message.offset(), message.key())


async def main(
    servers: str, topic: str, handle: Callable[[Message], Awaitable[object]] = bill
) -> None:
    config = {
        "bootstrap.servers": servers,
        "group.id": "billing-async",
        "auto.offset.reset": "earliest",
    }
    async with AsyncKeySharedConsumer(config) as consumer:
        await consumer.subscribe([topic])
        async for message in consumer:
            await handle(message)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
