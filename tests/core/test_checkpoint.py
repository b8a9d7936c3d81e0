"""The offset dict: there and back, what it looks like, and what is refused.

``golden/`` pins the format: what these files hold is in checkpoints, and must be read for good.
"""

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core import checkpoint, checkpoint_fields
from kshare.core.checkpoint import (
    EXTRA_KEY,
    BatchOffsets,
    RangeLimit,
    decode,
    decode_stable,
    encode,
)
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, NO_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange, from_pairs
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, Rectangle, Stripe, TopicPartition
from kshare.errors import CheckpointError, CheckpointVersionError
from tests.support.cells import progresses

GOLDEN = Path(__file__).parent / "golden"
HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)
T0, T1, T10 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 10)
OFFSET_MAX = 2**63 - 1
offsets_ = st.integers(0, OFFSET_MAX)


@st.composite
def far_progresses(draw: st.DrawFn) -> Progress:
    """With gaps of any size, in any hash ranges."""
    stable = draw(st.integers(0, 2**40))
    cuts = sorted(draw(st.sets(st.integers(0, HASH_SPACE), min_size=2, max_size=5)))
    layers = []
    for lo, hi in pairwise(cuts):
        ends = sorted(stable + step for step in draw(st.sets(st.integers(0, 2**62), max_size=8)))
        bounds = from_pairs(ends[: len(ends) // 2 * 2 : 2], ends[1::2])
        layers.append(Stripe(HashRange(lo, hi), bounds))
    return Progress.of_stripes(stable, layers)


@st.composite
def limits(draw: st.DrawFn) -> tuple[RangeLimit, ...]:
    cuts = sorted(draw(st.sets(st.integers(0, HASH_SPACE), min_size=4, max_size=12)))
    ranges = [HashRange(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    first = draw(st.integers(1, len(ranges)))
    groups = [group for group in (ranges[:first], ranges[first:]) if group]
    return tuple(
        RangeLimit(KeyRanges(group), draw(offsets_), draw(st.integers(1, OFFSET_MAX)))
        for group in groups
    )


TOPICS = st.sampled_from(["t", "a.b-c_d", "", "Ünï 😀"])
PLACES = st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1))
PROGRESSES = st.dictionaries(PLACES, progresses() | far_progresses(), max_size=4)
RANGE_LIMITS = limits()
COLUMNS = st.sampled_from(["key", "value"])


@st.composite
def offset_dicts(draw: st.DrawFn) -> BatchOffsets:
    progress = draw(PROGRESSES)
    started = draw(st.dictionaries(PLACES, offsets_, max_size=3))
    known = draw(st.sets(st.sampled_from(sorted(progress)))) if progress else set()
    limited = {place: draw(RANGE_LIMITS) for place in known}
    schemas = draw(st.dictionaries(COLUMNS, st.text(min_size=1, max_size=20)))
    committed = draw(st.booleans())
    return BatchOffsets(progress, started, limited, read_committed=committed, schemas=schemas)


def uneven() -> BatchOffsets:
    """An example of everything."""
    reached = Progress.of(
        100,
        [
            Rectangle(OffsetRange(100, 110), LOW),
            Rectangle(OffsetRange(115, 120), LOW),
            Rectangle(OffsetRange(1000, 2_000_000), HashRange.of(HALF)),
        ],
    )
    parts = KeyRanges([HashRange(0, 5), HashRange(6, HALF)])
    limited = (RangeLimit(parts, 200, 50), RangeLimit(KeyRanges([HIGH]), 200, 7))
    return BatchOffsets(
        progress={T0: reached, T1: Progress.at(7), T10: Progress.at(0)},
        started={T1: 5},
        limits={T0: limited},
    )


# -- laws ----------------------------------------------------------------------------------------


@given(offset_dicts())
def test_there_and_back(offsets: BatchOffsets) -> None:
    assert decode(encode(offsets)) == offsets


@given(offset_dicts())
def test_there_and_back_through_json_text(offsets: BatchOffsets) -> None:
    text = json.dumps(encode(offsets))
    assert decode(text) == offsets
    assert decode(json.loads(text)) == offsets


@given(offset_dicts())
def test_equal_offsets_have_equal_text(offsets: BatchOffsets) -> None:
    shuffled = BatchOffsets(
        dict(reversed([*offsets.progress.items()])),
        dict(reversed([*offsets.started.items()])),
        dict(reversed([*offsets.limits.items()])),
        offsets.read_committed,
        dict(reversed([*offsets.schemas.items()])),
    )
    assert json.dumps(encode(shuffled)) == json.dumps(encode(offsets))


@given(
    st.dictionaries(st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 9)), offsets_)
)
def test_level_partitions_are_written_as_spark_writes_them(
    stable: dict[TopicPartition, int],
) -> None:
    plain: dict[str, dict[str, int]] = {}
    for place, offset in stable.items():
        plain.setdefault(place.topic, {})[str(place.partition)] = offset
    offsets = BatchOffsets({place: Progress.at(offset) for place, offset in stable.items()})
    assert encode(offsets) == plain
    assert decode(plain) == offsets


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**64)
    | st.floats()
    | st.sampled_from(["", "0", "-1", "AAoFBQ==", "t"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["t", "0", "1", EXTRA_KEY, "v", "ic", "limits", "start", "h", "o", "e"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_whatever_a_dict_holds_it_is_a_value_or_a_checkpoint_error(value: Any) -> None:
    try:
        found = decode(value)
    except CheckpointError:
        return
    assert decode(encode(found)) == found


Path_ = tuple[str | int, ...]


def paths(value: Any, at: Path_ = ()) -> list[Path_]:
    """The place of everything in a dict."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = [at]
    for name, part in inside:
        below = isinstance(part, dict | list)
        found += paths(part, (*at, name)) if below else [(*at, name)]
    return found


def replaced(value: Any, at: Path_, new: Any) -> Any:
    if not at:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


@given(st.sampled_from(paths(encode(uneven()))), json_values)
def test_a_dict_with_anything_changed_in_it(at: Path_, new: Any) -> None:
    try:
        found = decode(replaced(encode(uneven()), at, new))
    except CheckpointError:
        return
    assert decode(encode(found)) == found


# -- the format ----------------------------------------------------------------------------------


def golden() -> dict[str, BatchOffsets]:
    """What the golden files hold, by name."""
    return {
        "v1_level": BatchOffsets(
            {T0: Progress.at(123), T1: Progress.at(0), T10: Progress.at(OFFSET_MAX)}
        ),
        "v1_initial": BatchOffsets({}, started={T0: 100, TopicPartition("u", 0): 0}),
        "v1_batch_0": BatchOffsets({T0: Progress.at(105)}, started={T0: 100}),
        "v1_everything": uneven(),
        "v1_committed": replace(uneven(), read_committed=True),
        "v2_batch_0": BatchOffsets(
            {T0: Progress.at(105)},
            started={T0: 100},
            schemas={"value": "avro id:7", "key": "string"},
        ),
        "v2_level": BatchOffsets({T0: Progress.at(123)}, schemas={"value": "json sha256:0a1b"}),
        "v3_open_id": BatchOffsets(
            {T0: Progress.at(5)},
            open=OpenBatch(
                "3f9c1d2e4b5a6978-13",
                1,
                "ends",
                LogPosition(5, 1234, "4f2MKlUTTBmJHhvEqUjM5A"),
                {T0: (ALL_HASHES,)},
            ),
        ),
        "v3_open": BatchOffsets(
            {T0: uneven().progress[T0], T1: Progress.at(5)},
            schemas={"value": "json sha256:0a1b"},
            open=OpenBatch(
                "3f9c1d2e4b5a6978-12",
                60_000,
                "__kshare_range_ends",
                LogPosition(5, 1234),
                {T0: (KeyRanges([LOW]), KeyRanges([HIGH])), T1: (ALL_HASHES,)},
            ),
        ),
        "v1_far": BatchOffsets(
            {
                T0: Progress.of(
                    2**40,
                    [
                        Rectangle(OffsetRange(2**40, 2**40 + 1), LOW),
                        Rectangle(OffsetRange(2**40 + 127, 2**40 + 255), WHOLE),
                        Rectangle(OffsetRange(2**62, OFFSET_MAX), HIGH),
                    ],
                )
            }
        ),
    }


@pytest.mark.parametrize("name", golden())
def test_golden_files(name: str) -> None:
    text = (GOLDEN / f"{name}.json").read_text()
    assert decode(text) == golden()[name]
    assert json.dumps(encode(golden()[name]), indent=2) + "\n" == text


def test_all_golden_files_are_read() -> None:
    assert {path.stem for path in GOLDEN.glob("v[123]_*.json")} == set(golden())
    assert {path.stem for path in GOLDEN.glob("*.json")} == {*golden(), "v999_future"}


def test_the_future_is_refused_with_what_to_do() -> None:
    with pytest.raises(CheckpointVersionError) as caught:
        decode((GOLDEN / "v999_future.json").read_text())
    assert caught.value.version == 999
    assert str(caught.value) == (
        "this checkpoint was written by a later kshare: version 999 of '@kshare', and this one "
        "reads up to version 3. Install that version of kshare or a later one, or start the query "
        "with a new checkpoint."
    )


def test_stable_offsets_are_read_of_a_text_whose_extra_part_is_damaged() -> None:
    text = '{"t": {"0": 5}, "@kshare": {"v": 1, "v": 2}}'
    with pytest.raises(CheckpointError):
        decode(text)
    assert decode_stable(text).progress == {TopicPartition("t", 0): Progress.at(5)}


@pytest.mark.parametrize("text", ["no JSON", '{"t": {"0": 5}, "t": {"0": 6}}', '{"t": {"0": 5}'])
def test_stable_offsets_that_cannot_be_read_either(text: str) -> None:
    with pytest.raises(CheckpointError):
        decode_stable(text)


def test_the_shape() -> None:
    reached = Progress.of(
        10, [Rectangle(OffsetRange(10, 20), LOW), Rectangle(OffsetRange(25, 30), LOW)]
    )
    offsets = BatchOffsets({T0: reached}, {T0: 4}, {T0: (RangeLimit(KeyRanges([HIGH]), 40, 5),)})
    assert encode(offsets) == {
        "t": {"0": 10},
        EXTRA_KEY: {
            "v": 1,
            "ic": {"t": {"0": [{"h": [0, HALF], "o": b64encode(bytes([0, 10, 5, 5])).decode()}]}},
            "limits": {"t": {"0": [{"h": [[HALF, HASH_SPACE]], "e": 40, "n": 5}]}},
            "start": {"t": {"0": 4}},
        },
    }


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    level = {place: Progress.at(1) for place in (T10, TopicPartition("a", 3), T1, T0)}
    assert (
        json.dumps(encode(BatchOffsets(level))) == '{"a": {"3": 1}, "t": {"0": 1, "1": 1, "10": 1}}'
    )


def test_three_bytes_a_gap_at_most() -> None:
    starts = range(7, 100_000, 20)
    reached = Progress.of(0, [Rectangle(OffsetRange(at, at + 9), WHOLE) for at in starts])
    (entry,) = encode(BatchOffsets({T0: reached}))[EXTRA_KEY]["ic"]["t"]["0"]
    assert len(entry["o"]) <= 3 * reached.gaps


@pytest.mark.parametrize(
    ("step", "packed"), [(127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (2**62, None)]
)
def test_steps_are_leb128(step: int, packed: bytes | None) -> None:
    packed = packed or b"\x80" * 8 + b"\x40"
    reached = Progress.of(0, [Rectangle(OffsetRange(1, 1 + step), WHOLE)])
    (entry,) = encode(BatchOffsets({T0: reached}))[EXTRA_KEY]["ic"]["t"]["0"]
    assert entry["o"] == b64encode(b"\x01" + packed).decode()


def test_a_dict_may_say_less_than_it_could() -> None:
    """Stripes that are not canonical are one value all the same."""
    told = encode(BatchOffsets({T0: Progress.at(10)}))
    stripes = [{"h": [0, HALF], "o": "AAo="}, {"h": [HALF, HASH_SPACE], "o": "AAo="}]
    told[EXTRA_KEY] = {"v": 1, "ic": {"t": {"0": stripes}}}
    assert decode(told) == BatchOffsets({T0: Progress.at(20)})


# -- what is refused -----------------------------------------------------------------------------


def packed(*numbers: int) -> str:
    return b64encode(bytes(numbers)).decode()


def everything() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(encode(uneven())))
    return told


def put(*at: str | int) -> Callable[[Any], dict[str, Any]]:
    """The example with another value somewhere."""

    def change(new: Any) -> dict[str, Any]:
        told = replaced(everything(), at, new)
        assert isinstance(told, dict)
        return told

    return change


IC = (EXTRA_KEY, "ic", "t", "0")
LIMITS = (EXTRA_KEY, "limits", "t", "0")


@pytest.mark.parametrize(
    ("value", "place", "wanted"),
    [
        ([], "the offsets", "an object with topics"),
        (5, "the offsets", "an object with topics"),
        ("{", "the offsets", "JSON"),
        ("[" * 100_000, "the offsets", "JSON"),
        ('{"t": {"0": 1}, "t": {"0": 2}}', "the offsets", "JSON"),
        ('{"t": {"0": 1, "0": 2}}', "the offsets", "JSON"),
        ('{"t": {"0": 1}, "@kshare": {"v": 1}, "@kshare": {"v": 1}}', EXTRA_KEY, "JSON"),
        ('{"t": {"0": 1}, "@kshare": {"v": 1, "v": 1}}', EXTRA_KEY, "JSON"),
        ('{"t": {"0": NaN}}', "the offsets", "JSON"),
        ('{"t": {"0": ' + "1" * 5000 + "}}", "the offsets", "JSON"),
        ({"t": 5}, "t", "an object with partitions"),
        ({"logOffset": 5}, "logOffset", "an object with partitions"),
        ({"t": {"0": -1}}, "t.0", "an offset"),
        ({"t": {"0": 1.0}}, "t.0", "an offset"),
        ({"t": {"0": True}}, "t.0", "an offset"),
        ({"t": {"0": None}}, "t.0", "an offset"),
        ({"t": {"0": 2**63}}, "t.0", "an offset"),
        ({"t": {"x": 1}}, "t.x", "a partition number"),
        ({"t": {"00": 1}}, "t.00", "a partition number"),
        ({"t": {"-1": 1}}, "t.-1", "a partition number"),
        ({"t": {"²": 1}}, "t.²", "a partition number"),
        ({"t": {str(2**31): 1}}, f"t.{2**31}", "a partition number"),
        ({"t": {0: 1}}, "t.0", "a partition number"),
        ({5: {"0": 1}}, "5", "the name of a topic"),
        (put(EXTRA_KEY)(None), EXTRA_KEY, "an object"),
        (put(EXTRA_KEY)({}), f"{EXTRA_KEY}.v", "1"),
        (put(EXTRA_KEY, "v")("1"), f"{EXTRA_KEY}.v", "1"),
        (put(EXTRA_KEY, "v")(True), f"{EXTRA_KEY}.v", "1"),
        (put(EXTRA_KEY, "v")(0), f"{EXTRA_KEY}.v", "1"),
        ({EXTRA_KEY: {"v": 1, "x": 1}}, EXTRA_KEY, "only committed, ic, limits, start, v"),
        (
            {EXTRA_KEY: {"v": 1, "schemas": {"value": "string"}}},
            EXTRA_KEY,
            "only committed, ic, limits, start, v",
        ),
        ({EXTRA_KEY: {"v": 0}}, f"{EXTRA_KEY}.v", "1 to 3"),
        ({EXTRA_KEY: {"v": 2, "schemas": []}}, f"{EXTRA_KEY}.schemas", "an object with columns"),
        ({EXTRA_KEY: {"v": 2, "schemas": {"x": "y"}}}, f"{EXTRA_KEY}.schemas", "key and value"),
        (
            {EXTRA_KEY: {"v": 2, "schemas": {"key": ""}}},
            f"{EXTRA_KEY}.schemas.key",
            "the name of a schema",
        ),
        (
            {EXTRA_KEY: {"v": 2, "schemas": {"key": 7}}},
            f"{EXTRA_KEY}.schemas.key",
            "the name of a schema",
        ),
        ({EXTRA_KEY: {"v": 1, "start": []}}, f"{EXTRA_KEY}.start", "an object with topics"),
        (put(EXTRA_KEY, "start", "t", "1")(-1), f"{EXTRA_KEY}.start.t.1", "an offset"),
        (put(*IC)([]), f"{EXTRA_KEY}.ic.t.0", "a list of individual commits"),
        (put(*IC, 0)([]), f"{EXTRA_KEY}.ic.t.0[0]", "an object with h, o"),
        (put(*IC, 0)({"h": [0, 1]}), f"{EXTRA_KEY}.ic.t.0[0]", "an object with h, o"),
        (put(*IC, 0, "h")([0]), f"{EXTRA_KEY}.ic.t.0[0].h", "[lo, hi]"),
        (put(*IC, 0, "h")([0, 1.0]), f"{EXTRA_KEY}.ic.t.0[0].h", "[lo, hi]"),
        (put(*IC, 0, "h")([5, 5]), f"{EXTRA_KEY}.ic.t.0[0].h", "0 <= lo < hi"),
        (put(*IC, 0, "h")([0, HALF + 1]), f"{EXTRA_KEY}.ic.t.0", "do not overlap"),
        (put(*IC, 0, "o")(5), f"{EXTRA_KEY}.ic.t.0[0].o", "text in base64"),
        (put(*IC, 0, "o")("AAo"), f"{EXTRA_KEY}.ic.t.0[0].o", "text in base64"),
        (put(*IC, 0, "o")("AA\no="), f"{EXTRA_KEY}.ic.t.0[0].o", "text in base64"),
        (put(*IC, 0, "o")("²²²²"), f"{EXTRA_KEY}.ic.t.0[0].o", "text in base64"),
        (put(*IC, 0, "o")(""), f"{EXTRA_KEY}.ic.t.0[0].o", "starts and ends in pairs"),
        (put(*IC, 0, "o")(packed(1, 1, 1)), f"{EXTRA_KEY}.ic.t.0[0].o", "starts and ends in pairs"),
        (put(*IC, 0, "o")(packed(1, 0)), f"{EXTRA_KEY}.ic.t.0[0].o", "ascending offsets"),
        (put(*IC, 0, "o")(packed(1, 129, 1, 0)), f"{EXTRA_KEY}.ic.t.0[0].o", "in pairs"),
        (put(*IC, 1, "o")(packed(1, 129)), f"{EXTRA_KEY}.ic.t.0[1].o", "whole numbers"),
        (put(*IC, 0, "o")(packed(1, 129, 0)), f"{EXTRA_KEY}.ic.t.0[0].o", "as few bytes"),
        (put(*IC, 0, "o")(packed(1, *[255] * 9, 1)), f"{EXTRA_KEY}.ic.t.0[0].o", "at most 9 bytes"),
        (put(*IC, 0, "o")(packed(1, *[255] * 8, 127)), f"{EXTRA_KEY}.ic.t.0[0].o", "offsets up to"),
        (
            put(EXTRA_KEY, "ic")({"t": {"5": everything()[EXTRA_KEY]["ic"]["t"]["0"]}}),
            f"{EXTRA_KEY}.ic.t.5",
            "the stable offset of t-5",
        ),
        (
            put(EXTRA_KEY, "limits")({"u": {"0": everything()[EXTRA_KEY]["limits"]["t"]["0"]}}),
            f"{EXTRA_KEY}.limits.u.0",
            "the stable offset of u-0",
        ),
        (
            put(EXTRA_KEY)({**everything()[EXTRA_KEY], "committed": "yes"}),
            f"{EXTRA_KEY}.committed",
            "true or false",
        ),
        (put(*LIMITS)({}), f"{EXTRA_KEY}.limits.t.0", "a list of limits"),
        (put(*LIMITS)([]), f"{EXTRA_KEY}.limits.t.0", "a list of limits"),
        (put(*LIMITS, 0)(5), f"{EXTRA_KEY}.limits.t.0[0]", "an object with h, e, n"),
        (put(*LIMITS, 0, "e")(-1), f"{EXTRA_KEY}.limits.t.0[0].e", "an offset"),
        (put(*LIMITS, 0, "n")(0), f"{EXTRA_KEY}.limits.t.0[0].n", "at least 1"),
        (put(*LIMITS, 0, "h")([]), f"{EXTRA_KEY}.limits.t.0[0].h", "a list of [lo, hi]"),
        (put(*LIMITS, 0, "h", 1)([5]), f"{EXTRA_KEY}.limits.t.0[0].h[1]", "[lo, hi]"),
        (put(*LIMITS, 0, "h", 1)([5, 9]), f"{EXTRA_KEY}.limits.t.0[0].h", "gaps between them"),
        (put(*LIMITS, 1, "h", 0)([3, 9]), f"{EXTRA_KEY}.limits.t.0", "do not overlap"),
        (
            put(*LIMITS)(everything()[EXTRA_KEY]["limits"]["t"]["0"][::-1]),
            f"{EXTRA_KEY}.limits.t.0",
            "ascending by their first hash",
        ),
    ],
)
def test_what_is_refused(value: Any, place: str, wanted: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        decode(value)
    assert not isinstance(caught.value, CheckpointVersionError)
    text = str(caught.value)
    assert text.startswith(f"the checkpoint's offsets cannot be read: {place}: ")
    assert wanted in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (checkpoint, "_TEXT_MAX", json.dumps(everything())),
        (checkpoint_fields, "_PACKED_MAX", None),
        (checkpoint_fields, "_RANGES_MAX", None),
    ],
)
def test_what_is_too_large_is_refused(
    module: ModuleType, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = everything() if value is None else value
    decode(told)
    monkeypatch.setattr(module, name, 1)
    with pytest.raises(CheckpointError, match="wanted at most 1 "):
        decode(told)


@pytest.mark.parametrize(
    ("hashes", "end", "records", "wanted"),
    [
        (NO_HASHES, 5, 5, "wanted hashes"),
        (ALL_HASHES, -1, 5, "end >= 0"),
        (ALL_HASHES, 5, 0, "records >= 1"),
    ],
)
def test_what_is_no_limit(hashes: KeyRanges, end: int, records: int, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        RangeLimit(hashes, end, records)
