"""Every odd shape of each codec: read as Java's client reads it, alone and among others."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.progress import TopicPartition
from kshare.errors import CorruptRecordError
from kshare.read.decode.codecs import Arena
from kshare.read.decode.lz4_frames import first_frame
from kshare.read.decode.streams import CODECS, InflateError, Stream, open_stream
from kshare.read.decode.windows import Windows
from tests.support.batches import batch_of, compress, encode_record, varint
from tests.support.decoding import FEW, decode, offsets, simple
from tests.support.odd_frames import Shape, shapes

RAW = b"".join(map(encode_record, FEW))
ALL = shapes(RAW)
SOME = st.sampled_from([*CODECS[1:], "framed"])


def opened(codec: str, data: bytes, most: int = 1 << 30) -> Stream:
    return open_stream(CODECS.index(codec), memoryview(data), most)


def read(stream: Stream, sizes: list[int]) -> bytes:
    """All of a stream, in pieces of some sizes."""
    found = b""
    while not stream.is_over:
        room = bytearray(sizes[len(found) % len(sizes)])
        found += bytes(room[: stream.read(memoryview(room))])
    return found


@pytest.mark.parametrize("shape", ALL.values(), ids=ALL.keys())
@pytest.mark.parametrize("window", [1, 13, 1 << 20])
def test_each_shape_is_read_as_java_reads_it(shape: Shape, window: int) -> None:
    batch = replace(batch_of(FEW, base=2, codec=shape.codec), payload=shape.payload)
    if not shape.is_read:
        with pytest.raises(CorruptRecordError, match="batch at offset 2 is corrupt"):
            decode(batch, arena=Arena(window))
        return
    rows = decode(batch, arena=Arena(window))
    assert [(row["key"], row["value"]) for row in rows] == [(r.key, r.value) for r in FEW]


@pytest.mark.parametrize("shape", ALL.values(), ids=ALL.keys())
def test_a_shape_among_others_spoils_none(shape: Shape) -> None:
    odd = replace(batch_of(FEW, base=20, codec=shape.codec), payload=shape.payload)
    before, after = simple(10, 10, codec=shape.codec), simple(25, 10, codec=shape.codec)
    if shape.is_read:
        assert offsets(decode(before, odd, after)) == list(range(10, 35))
        return
    with pytest.raises(CorruptRecordError, match="batch at offset 20 is corrupt"):
        decode(before, odd, after)


@given(st.binary(max_size=3_000), SOME, st.lists(st.integers(1, 700), min_size=1, max_size=5))
def test_what_comes_out_is_what_went_in(raw: bytes, codec: str, sizes: list[int]) -> None:
    """Whatever the sizes of the pieces."""
    is_framed = codec == "framed"
    codec = "snappy" if is_framed else codec
    data = compress(raw, codec, xerial=is_framed, block=100)
    assert read(opened(codec, data), sizes) == raw


@given(
    st.binary(min_size=1, max_size=300),
    st.sampled_from(["gzip", "lz4", "zstd"]),
    st.data(),
    st.integers(1, 400),
)
def test_a_stream_that_is_cut_short_says_so(raw: bytes, codec: str, data: Any, size: int) -> None:
    whole = compress(raw, codec)
    cut = data.draw(st.integers(0, len(whole) - 1))
    if not cut and codec != "gzip":  # a frame that has not begun
        assert read(opened(codec, b""), [size]) == b""
        return
    with pytest.raises(InflateError, match=f"cannot be decompressed by {codec}"):
        read(opened(codec, whole[:cut]), [size])


@given(st.binary(max_size=200), st.sampled_from(["gzip", "snappy", "lz4", "zstd"]))
def test_noise_is_refused_or_read_and_never_more(noise: bytes, codec: str) -> None:
    try:
        found = read(opened(codec, noise), [64])
    except InflateError:
        return
    assert len(found) < 200 * 64


@given(st.binary(max_size=60))
def test_what_is_no_lz4_frame_is_left_as_it_is(noise: bytes) -> None:
    for data in (noise, b"\x04\x22\x4d\x18" + noise):
        frame, size = first_frame(memoryview(data))
        assert 0 <= size <= len(data)
        assert len(frame) <= size


def test_memory_that_a_codec_cannot_get_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zstd and lz4 say so in words."""
    stream = opened("zstd", compress(b"x", "zstd"))

    class Full:
        def readinto(self, _: memoryview) -> int:
            raise OSError("ZSTD decompress failed: Allocation error : not enough memory")

    monkeypatch.setattr(stream, "_stream", Full())
    with pytest.raises(MemoryError, match="not enough memory"):
        stream.read(memoryview(bytearray(8)))


def test_a_window_never_holds_a_record_that_is_too_large() -> None:
    for most in (1, 63, 64, 100, 8_191, 8_192, 1 << 20):
        windows = Windows(TopicPartition("t", 3), Arena(), check_crcs=True, max_record=most)
        size = len(varint(most))
        assert windows._whole_max == most + size
        assert windows._whole_max < most + 1 + len(varint(most + 1))
