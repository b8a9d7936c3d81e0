"""The tests against a real Kafka and a real Spark."""
