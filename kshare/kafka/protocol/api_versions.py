"""The response to ApiVersions version 3: which versions of each request a broker speaks.

kafka-python reads the tagged fields of this response, and of no other one that kshare asks for, in
an ``assert``. Python leaves those out with ``-O`` (PYTHONOPTIMIZE), and every connection failed.
"""

import struct

__all__ = ["parse_api_versions"]

_ERROR = struct.Struct(">h")
_API = struct.Struct(">hhh")  # key, lowest, highest
_THROTTLE = struct.Struct(">i")
_VARINT_BYTES_MAX = 5


def parse_api_versions(body: memoryview) -> tuple[int, dict[int, tuple[int, int]]]:
    """Read the body of a response.

    Returns:
        Kafka's error code, 0 for none; by API key the lowest and the highest version, unless there
        is an error.

    Raises:
        ValueError: It is cut short.
    """
    try:
        (error_code,) = _ERROR.unpack_from(body)
        if error_code:  # brokers do not agree on what else is in the answer
            return error_code, {}
        count, position = _varint(body, _ERROR.size)
        versions = {}
        for _ in range(count - 1):  # an array's length is one less than what is written
            key, lowest, highest = _API.unpack_from(body, position)
            versions[key] = (lowest, highest)
            position = _behind_tagged_fields(body, position + _API.size)
        _THROTTLE.unpack_from(body, position)
        _behind_tagged_fields(body, position + _THROTTLE.size)
    except (struct.error, IndexError) as error:
        raise ValueError(f"{len(body)} bytes are too few") from error
    return 0, versions


def _behind_tagged_fields(body: memoryview, position: int) -> int:
    count, position = _varint(body, position)
    for _ in range(count):
        _, position = _varint(body, position)  # its tag
        size, position = _varint(body, position)
        position += size
        if position > len(body):
            raise IndexError
    return position


def _varint(body: memoryview, position: int) -> tuple[int, int]:
    """The number at a position, and where it ends."""
    value = 0
    for shift in range(_VARINT_BYTES_MAX):
        byte = body[position + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position + shift + 1
    raise ValueError("a number of more than five bytes")
