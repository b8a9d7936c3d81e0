"""Orders, without an end: python docker/demo/traffic.py SERVERS TOPIC [RECORDS_PER_SECOND]

One customer of fifty has a fifth of all orders. The topic is created if it is not there.
"""

import random
import sys
import time
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

CUSTOMERS = 50
PARTITIONS = 2
PARTS_PER_SECOND = 10


def create(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    wanted = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)
    try:
        admin.create_topics([wanted])[topic].result(60)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise


def main(
    servers: str, topic: str, rate: float = 200.0, goes_on: Callable[[], bool] = lambda: True
) -> None:
    create(servers, topic)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50})
    chance = random.Random(7)
    while goes_on():
        for _ in range(max(int(rate / PARTS_PER_SECOND), 1)):
            customer = 7 if chance.random() < 0.2 else chance.randrange(CUSTOMERS)
            amount = b'{"amount": %d}' % chance.randrange(1, 100)
            producer.produce(topic, key=b"customer-%d" % customer, value=amount)
        producer.poll(0)
        time.sleep(1 / PARTS_PER_SECOND)
    producer.flush(10)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 200.0)
