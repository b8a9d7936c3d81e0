"""The records of a batch in every odd shape of a codec, and whether Java's client reads it.

What Java reads was asked of kafka-clients 4.1.1: ``integration/test_odd_frames.py`` asks again.
"""

import gzip
import struct
import zlib
from typing import NamedTuple

import pyarrow as pa

from kshare.read.decode.lz4_frames import _descriptor_checksum
from tests.support.batches import compress


class Shape(NamedTuple):
    """Some bytes in a codec.

    Attributes:
        codec: The codec.
        payload: The bytes.
        java: Whether Java's client reads them as what was compressed.
        kshare: Whether kshare does; None: as Java.
    """

    codec: str
    payload: bytes
    java: bool = True
    kshare: bool | None = None

    @property
    def is_read(self) -> bool:
        """True if kshare reads it."""
        return self.java if self.kshare is None else self.kshare


def shapes(raw: bytes) -> dict[str, Shape]:
    """All shapes of some bytes, by name."""
    return {**_gzip(raw), **_snappy(raw), **_lz4(raw), **_zstd(raw)}


def _cut(raw: bytes) -> tuple[bytes, bytes]:
    """Two parts; the border is within a record."""
    return raw[: len(raw) // 2], raw[len(raw) // 2 :]


# -- gzip ---------------------------------------------------------------------------------------


def _member(raw: bytes, flags: int = 0, fields: bytes = b"") -> bytes:
    head = b"\x1f\x8b\x08" + bytes([flags]) + b"\0\0\0\0\0\xff" + fields
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = deflate.compress(raw) + deflate.flush()
    return head + body + struct.pack("<II", zlib.crc32(raw), len(raw) & 0xFFFFFFFF)


def _gzip(raw: bytes) -> dict[str, Shape]:
    one, two = _cut(raw)
    member = _member(raw)
    return {
        "gzip: members": Shape("gzip", _member(one) + _member(two)),
        "gzip: an empty member first": Shape("gzip", _member(b"") + member),
        "gzip: an empty member last": Shape("gzip", member + _member(b"")),
        "gzip: zeros behind": Shape("gzip", member + bytes(8)),
        "gzip: many zeros behind": Shape("gzip", member + bytes(20_000)),
        "gzip: noise behind": Shape("gzip", member + bytes(range(1, 200))),
        "gzip: a magic behind": Shape("gzip", member + b"\x1f\x8b\x08"),
        "gzip: name, comment, extra": Shape(
            "gzip", _member(raw, 4 | 8 | 16, b"\x03\0abcname\0comment\0")
        ),
        "gzip: a checksum of the header": Shape("gzip", _member(raw, 2)),
        "gzip: stored": Shape("gzip", gzip.compress(raw, 0)),
        "gzip: a wrong checksum": Shape("gzip", member[:-8] + bytes(4) + member[-4:], java=False),
        "gzip: a wrong size": Shape("gzip", member[:-4] + bytes(4), java=False),
        "gzip: no trailer": Shape("gzip", member[:-8], java=False),
        "gzip: zlib's header": Shape("gzip", zlib.compress(raw), java=False, kshare=True),
    }


# -- snappy -------------------------------------------------------------------------------------


def _xerial(raw: bytes, block: int = 50, version: bytes = b"\0\0\0\1\0\0\0\1") -> bytes:
    framed = compress(raw, "snappy", xerial=True, block=block)
    return framed[:8] + version + framed[16:]


def _snappy(raw: bytes) -> dict[str, Shape]:
    one, two = _cut(raw)
    bare, framed = compress(raw, "snappy"), _xerial(raw)
    return {
        "snappy: bare": Shape("snappy", bare),
        "snappy: bare, noise behind": Shape("snappy", bare + b"\1\2\3", java=False),
        "snappy: framed": Shape("snappy", framed),
        "snappy: blocks of a byte": Shape("snappy", _xerial(raw, 1)),
        "snappy: a header amid": Shape("snappy", _xerial(one) + _xerial(two)),
        "snappy: a header amid, and behind": Shape(
            "snappy", _xerial(one) + _xerial(b"") + _xerial(two) + _xerial(b"")
        ),
        "snappy: an empty block": Shape("snappy", framed[:16] + b"\0\0\0\1\0" + framed[16:]),
        "snappy: little-endian versions": Shape(
            "snappy", _xerial(raw, version=b"\1\0\0\0\1\0\0\0")
        ),
        "snappy: three bytes behind": Shape("snappy", framed + b"\0\0\1"),
        "snappy: half a header behind": Shape("snappy", framed + b"\x82SNAPPX\0" + bytes(8)),
        "snappy: a block that is cut": Shape("snappy", framed[:-1], java=False),
        "snappy: a block of no bytes": Shape("snappy", framed + bytes(4), java=False),
    }


# -- lz4 ----------------------------------------------------------------------------------------

_MAGIC = b"\x04\x22\x4d\x18"


def _frame(
    raw: bytes,
    *,
    flags: int = 0x60,
    fields: bytes = b"",
    block: int = 64,
    stored: bool = False,
    behind: bytes = b"",
    wrong: int = 0,
    end: bytes = bytes(4),
) -> bytes:
    descriptor = bytes([flags, 0x40]) + fields
    out = _MAGIC + descriptor + bytes([_descriptor_checksum(descriptor) ^ wrong])
    for at in range(0, len(raw), block):
        part = raw[at : at + block]
        data = part if stored else bytes(pa.compress(part, "lz4_raw", asbytes=True))
        out += struct.pack("<I", len(data) | (1 << 31 if stored else 0)) + data
    return out + end + behind


def _lz4(raw: bytes) -> dict[str, Shape]:
    one, two = _cut(raw)
    frame = _frame(raw)
    size = struct.pack("<Q", len(raw))
    skippable = struct.pack("<II", 0x184D2A50, 5) + b"hello"
    return {
        "lz4: blocks": Shape("lz4", frame),
        "lz4: stored blocks": Shape("lz4", _frame(raw, stored=True)),
        "lz4: the size": Shape("lz4", _frame(raw, flags=0x68, fields=size)),
        "lz4: a wrong size": Shape("lz4", _frame(raw, flags=0x68, fields=bytes(8))),
        "lz4: a wrong checksum": Shape("lz4", _frame(raw, flags=0x64, behind=b"abcd")),
        "lz4: a wrong size and checksum": Shape(
            "lz4", _frame(raw, flags=0x6C, fields=bytes(8), behind=b"abcd")
        ),
        "lz4: frames": Shape("lz4", _frame(one) + _frame(two), java=False, kshare=True),
        "lz4: another frame behind": Shape("lz4", frame + _frame(b"noise")),
        "lz4: an empty frame behind": Shape("lz4", frame + _frame(b"")),
        "lz4: zeros behind": Shape("lz4", frame + bytes(8)),
        "lz4: noise behind": Shape("lz4", frame + bytes(range(1, 50))),
        "lz4: a skippable frame behind": Shape("lz4", frame + skippable),
        "lz4: a skippable frame first": Shape("lz4", skippable + frame, java=False, kshare=True),
        "lz4: an empty frame first": Shape("lz4", _frame(b"") + frame, java=False, kshare=True),
        "lz4: a wrong checksum of the header": Shape("lz4", _frame(raw, wrong=1), java=False),
        "lz4: that, and a size": Shape(
            "lz4", _frame(raw, flags=0x68, fields=size, wrong=1), java=False
        ),
        "lz4: no end mark": Shape("lz4", _frame(raw, end=b""), java=False),
        "lz4: a cut block": Shape("lz4", frame[:-6], java=False),
    }


# -- zstd ---------------------------------------------------------------------------------------


def _stored(raw: bytes, window_log: int) -> bytes:
    """A frame of one stored block, with a window of that size."""
    head = struct.pack("<I", 0xFD2FB528) + b"\0" + bytes([(window_log - 10) << 3])
    return head + struct.pack("<I", len(raw) << 3 | 1)[:3] + raw


def _zstd(raw: bytes) -> dict[str, Shape]:
    one, two = _cut(raw)
    frame = compress(raw, "zstd")
    skippable = struct.pack("<II", 0x184D2A5F, 5) + b"hello"
    empty = compress(b"", "zstd")
    return {
        "zstd: frames": Shape("zstd", compress(one, "zstd") + compress(two, "zstd")),
        "zstd: skippable frames": Shape(
            "zstd",
            skippable + compress(one, "zstd") + skippable + compress(two, "zstd") + skippable,
        ),
        "zstd: empty frames": Shape("zstd", empty + frame + empty),
        "zstd: no size": Shape("zstd", _stored(raw, 20)),
        "zstd: a window of 128 MiB": Shape("zstd", _stored(raw, 27)),
        "zstd: a window of 256 MiB": Shape("zstd", _stored(raw, 28), java=False),
        "zstd: zeros behind": Shape("zstd", frame + bytes(8), java=False),
        "zstd: three zeros behind": Shape("zstd", frame + bytes(3), java=False),
        "zstd: three bytes of a magic behind": Shape("zstd", frame + frame[:3], kshare=False),
        "zstd: a cut frame": Shape("zstd", frame[:-1], java=False),
    }
