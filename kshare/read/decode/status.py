"""Result codes of kernels; from OLD_FORMAT on they are faults."""

from typing import Final

FULL: Final = -1  # there are ``max_rows`` rows, or there is no room for the next record
DONE: Final = 0
OLD_FORMAT: Final = 1
UNKNOWN_FORMAT: Final = 2
BATCH_LENGTH: Final = 3
BATCH_OFFSETS: Final = 4
BATCH_COUNT: Final = 5
RECORD_LENGTH: Final = 6
RECORD_FIELD: Final = 7
RECORD_OFFSET: Final = 8
KEY_LENGTH: Final = 9
VALUE_LENGTH: Final = 10
HEADER: Final = 11
RECORD_REST: Final = 12
BATCH_REST: Final = 13
TIMESTAMP: Final = 14

FAULTS: Final = {
    OLD_FORMAT: "message format v0 or v1",
    UNKNOWN_FORMAT: "a message format later than v2",
    BATCH_LENGTH: "its length is impossible",
    BATCH_OFFSETS: "its offsets are impossible, or not above those of the batch before",
    BATCH_COUNT: "its number of records is impossible",
    RECORD_LENGTH: "a record does not fit into the batch",
    RECORD_FIELD: "a number in a record's head is cut short or too long",
    RECORD_OFFSET: "a record's offset is not within the batch, or not above the one before",
    KEY_LENGTH: "a key does not fit into its record",
    VALUE_LENGTH: "a value does not fit into its record",
    HEADER: "a header does not fit into its record",
    RECORD_REST: "a record is longer than its fields",
    BATCH_REST: "there are bytes behind the last record",
    TIMESTAMP: "a record's timestamp is beyond what microseconds in 64 bits can hold",
}
"""The meaning of each fault, as the rest of a sentence about a batch."""
