"""The control path, on confluent-kafka: partitions, offsets, parked keys, diagnosis."""
