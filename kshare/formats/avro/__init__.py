"""Avro: a writer's and the reader's schema become a table of steps, which a kernel takes."""
