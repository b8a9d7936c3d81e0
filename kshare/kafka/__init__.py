"""Kafka, seen from a client: the control path on confluent-kafka, and its protocol beside it.

Law: nothing is imported here, so that tasks can import the protocol without librdkafka's clients.
"""
