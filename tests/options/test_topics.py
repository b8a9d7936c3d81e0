"""What is read, and from where to where: topics, patterns, assignments, offsets, timestamps."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.progress import TopicPartition
from kshare.options import (
    EARLIEST,
    LATEST,
    Assign,
    AtTimestamp,
    PerPartition,
    SourceOptions,
    Subscribe,
    SubscribePattern,
    TimestampPerPartition,
    parse_options,
)
from kshare.options.frozen import FrozenMapping
from kshare.options.offset_specs import (
    parse_assign,
    parse_per_partition,
    parse_timestamps,
    partitions_fault,
)
from kshare.options.pattern import java_pattern
from tests.support.options import SERVERS, problems, warnings

HALF = HASH_SPACE // 2
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NAMES = st.text("abzAZ019._-", min_size=1, max_size=5).filter(lambda name: name not in {".", ".."})
PLACES = st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1))


def reading(*, streaming: bool = True, **given: Any) -> SourceOptions:
    """Options that parse without a warning, and name what is read themselves."""
    parsed = parse_options({**SERVERS, **given}, streaming=streaming)
    assert parsed.warnings == ()
    return parsed.options


def fault(*, streaming: bool = True, **given: Any) -> str:
    """The one fault of such options."""
    (found,) = problems(given, streaming=streaming, base=SERVERS)
    return found


def nested(places: dict[TopicPartition, object]) -> str:
    """The JSON of values per partition."""
    topics: dict[str, dict[str, object]] = {}
    for (topic, partition), value in places.items():
        topics.setdefault(topic, {})[str(partition)] = value
    return json.dumps(topics)


# -- which topics ---------------------------------------------------------------------------------


def test_one_way_to_say_what_is_read_is_needed() -> None:
    option = "subscribe | subscribePattern | assign"
    assert fault() == f"{option}: one of these options must be specified"
    assert fault(subscribe="t", assign='{"t": [0]}') == (
        f"{option}: only one of these options must be specified; given: subscribe, assign"
    )


def test_topics_are_separated_by_commas() -> None:
    assert reading(subscribe=" b , a,,b ").topics == Subscribe(("b", "a"))


@pytest.mark.parametrize("text", ["", " , "])
def test_no_topic_is_a_fault(text: str) -> None:
    assert fault(subscribe=text).startswith("subscribe: names no topic")


@pytest.mark.parametrize("name", ["a b", ".", "..", "x" * 250, "töpic", "a/b", "@kshare"])
def test_what_cannot_be_a_topic_is_refused(name: str) -> None:
    right = "allowed: 1 to 249 letters, digits, '.', '_', '-'"
    found = fault(subscribe=f"good,{name}")
    assert found.startswith(f"subscribe: {name!r} cannot be a topic's name")
    assert found.endswith(right)
    assert fault(assign=json.dumps({name: [0]})).endswith(right)


@given(st.lists(NAMES, min_size=1))
def test_all_topics_are_kept_in_order(names: list[str]) -> None:
    assert reading(subscribe=",".join(names)).topics == Subscribe(tuple(dict.fromkeys(names)))


# -- patterns -------------------------------------------------------------------------------------


def test_a_pattern_is_found_anywhere_in_a_name() -> None:
    topics = reading(subscribePattern="order.*s").topics
    assert isinstance(topics, SubscribePattern)
    assert topics.matches("my-orders-v2")
    assert topics.matches("orders")
    assert not topics.matches("order")


def test_no_pattern_is_a_fault() -> None:
    assert fault(subscribePattern=" ").startswith("subscribePattern: is empty")


# What java.util.regex of OpenJDK 17 finds: (pattern, names with it, names without it).
MATCHES = [
    ("^orders$", ["orders"], ["orders2", "xorders"]),
    ("a|b", ["xa", "bx"], ["c"]),
    (r"\Qa.b\E-c", ["a.b-c"], ["axb-c"]),
    (r"\Qa.b", ["a.b"], ["axb"]),
    (r"\Qa.b\E+c", ["a.bbc"], ["axbc"]),
    (r"[\Qa.\E]x", [".x", "ax"], ["bx"]),
    (r"\p{Lower}+\.\p{Digit}", ["ab.1"], ["AB.1", "ab.c"]),
    (r"^\p{Alpha}\P{Alnum}$", ["a-", "b."], ["ab", "a1"]),
    (r"^[\p{Upper}\d]+$", ["A1"], ["a1"]),
    (r"^\p{IsAlphabetic}\pL\p{Lu}$", ["abC"], ["abc", "a1C"]),
    (r"^\p{Punct}\p{P}\p{XDigit}$", ["-_f", "._9"], ["a_f", "-af", "-_g"]),
    (r"^\p{Graph}\p{Print}\p{ASCII}\P{Space}\P{Blank}$", ["a-.z0"], ["a"]),
    (r"^(?<y>a)\k<y>$", ["aa"], ["ab"]),
    (r"^(a)\1$", ["aa"], ["a1"]),
    (r"^(a)\12$", ["aa2"], ["a1", "a2"]),
    (r"^(a)(b)\2$", ["abb"], ["aba"]),
    (r"^(?i)orders$", None, None),
    (r"(?i)^Orders$", ["oRDERs"], ["order"]),
    (r"^(?i:a)b$", ["Ab"], ["AB"]),
    (r"^a*+a$", [], ["aaa"]),
    (r"^(?>a|ab)c$", ["ac"], ["abc"]),
    (r"^(?=a).(?!b).$", ["ac"], ["ab", "bc"]),
    (r"(?<=a)b", ["ab"], ["bb"]),
    (r"(?<!a)b", ["bb"], ["ab"]),
    (r"^a{2}b{1,}c{0,1}$", ["aab", "aabbc"], ["ab"]),
    (r"^a{2}?$", ["aa"], ["a"]),
    (r"^[]a]$", ["a"], ["b"]),
    (r"^[^]a]$", ["b"], ["a"]),
    (r"^[a|b]$", ["a", "b"], ["c"]),
    ("^[a~~b]$", ["a", "b"], ["c"]),
    ("^[a||b]$", ["a", "b"], ["c"]),
    (r"^\w$", ["a"], ["é"]),
    (r"^[a\-z]$", ["-", "a"], ["b"]),
    (r"^\x61\u0062\0143$", ["abc"], ["abd"]),
    (r"a\z", ["ba"], ["ab"]),
    (r"a\Z", ["ba"], ["ab"]),
    (r"\Aa", ["ab"], ["ba"]),
    (r"\.v\d+$", ["x.v12"], ["x-v1", "x.v"]),
    (r"^\w+$", ["a_1"], ["a-1"]),
    (r"^\H+$", ["a"], []),
    (r"^[\ha]$", ["a"], ["h"]),
    (r"x}", [], ["x"]),
    (r"a\-b", ["a-b"], ["ab"]),
    (r"\bb\b", ["a-b"], ["ab"]),
]


@pytest.mark.parametrize(("pattern", "hits", "misses"), MATCHES)
def test_patterns_find_what_javas_find(
    pattern: str, hits: list[str] | None, misses: list[str] | None
) -> None:
    if hits is None or misses is None:
        with pytest.raises(ValueError, match="does not support"):
            java_pattern(pattern)
        return
    compiled = java_pattern(pattern)
    assert [name for name in hits if not compiled.search(name)] == []
    assert [name for name in misses if compiled.search(name)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        *("[a-z&&[^b]]", "[a[bc]]", "(?x)a b", "(?u)a", "(?P<n>a)", "(?#c)a", "(?(1)a|b)", r"\G"),
        *(r"\R", r"\X", r"\N{DIGIT ONE}", r"\p{IsGreek}", r"\cA", "{a}", "a{,3}", "a{x", "[a", "("),
        *("a)", "*a", "a**", r"\y", "a\\", r"(?<=a*)b", r"[z-a]", r"\k<n>", r"[\P{L}]"),
        *("(a)" * 10 + r"\10", r"[\b]", r"\x{61}", "[a--b]"),
    ],
)
def test_what_only_one_of_the_two_languages_has_is_refused(pattern: str) -> None:
    found = fault(subscribePattern=pattern)
    assert re.match(
        r"subscribePattern: (has at position \d+ .*|no .*), which kshare does not support"
        r"|subscribePattern: is not a regular expression that kshare can use: ",
        found,
        re.DOTALL,
    )


@given(NAMES, NAMES)
def test_a_quoted_name_matches_itself(name: str, other: str) -> None:
    for pattern in (rf"^\Q{name}\E$", f"^{re.escape(name)}$"):
        assert java_pattern(pattern).search(name)
        assert bool(java_pattern(pattern).search(other)) is (name == other)


@given(st.text(max_size=12))
def test_any_text_is_a_pattern_or_a_fault(text: str) -> None:
    try:
        java_pattern(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is right


@given(st.text("ab.-_", max_size=4), st.text("abc-_", max_size=12))
def test_a_dot_is_any_character_and_all_else_is_itself(text: str, topic: str) -> None:
    windows = (topic[at : at + len(text)] for at in range(len(topic) - len(text) + 1))
    is_found = any(
        all(wanted in (".", seen) for wanted, seen in zip(text, window, strict=True))
        for window in windows
    )
    assert (java_pattern(text).search(topic) is not None) is is_found


@given(st.text(max_size=8), st.text(max_size=20))
def test_quoted_text_is_found_as_it_is(text: str, topic: str) -> None:
    text = text.replace("\\E", "")
    found = java_pattern(f"\\Q{text}\\E").search(f"{topic}{text}")
    assert found is not None
    assert found[0] == text
    assert (java_pattern(f"\\Q{text}\\E").search(topic) is not None) is (text in topic)


# -- assign ---------------------------------------------------------------------------------------


def test_assign_lists_partitions() -> None:
    topics = reading(assign='{"t": [1, 0, 1], "u": [0]}').topics
    assert topics == Assign(FrozenMapping({T0: (), T1: (), U0: ()}))


def test_assign_takes_key_ranges() -> None:
    text = f'{{"t": {{"0": [[{HALF}, {HASH_SPACE}], [0, 5]], "1": []}}}}'
    topics = reading(assign=text).topics
    assert isinstance(topics, Assign)
    assert dict(topics.partitions) == {
        T0: (HashRange(0, 5), HashRange(HALF, HASH_SPACE)),
        T1: (),
    }


RANGES = st.lists(st.integers(0, HASH_SPACE), unique=True, max_size=8).map(
    lambda cuts: [(lo, hi) for lo, hi in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)]
)


@given(st.dictionaries(PLACES, RANGES, min_size=1), st.randoms())
def test_assign_is_what_was_written(
    places: dict[TopicPartition, list[tuple[int, int]]], shuffled: random.Random
) -> None:
    written: dict[TopicPartition, object] = {
        place: shuffled.sample(ranges, len(ranges)) for place, ranges in places.items()
    }
    found = parse_assign(nested(written)).partitions
    assert dict(found) == {
        place: tuple(HashRange(*pair) for pair in ranges) for place, ranges in places.items()
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("t", 'is "t"; write {"orders": '),
        ("{", "is not JSON"),
        ("[0]", "must be a JSON object"),
        ("{}", "names no partition"),
        ('{"t": []}', "names no partition"),
        ('{"t": 0}', "topic t must have a list or an object"),
        ('{"t": [-1]}', "topic t: -1 is no partition"),
        ('{"t": [2147483648]}', "topic t: 2147483648 is no partition"),
        ('{"t": [true]}', "topic t: true is no partition"),
        ('{"t": [0.0]}', "topic t: 0.0 is no partition"),
        ('{"t": ["0"]}', 'topic t: "0" is no partition'),
        ('{"t": [0], "t": [1]}', 'has "t" twice in one object'),
        ('{"t": {"0": [], "0": []}}', 'has "0" twice in one object'),
        ('{"t": {"0": [], "00": []}}', "topic t has partition 0 twice"),
        ('{"t": {"x": []}}', 'topic t: "x" is no partition'),
        ('{"t": {"٣": []}}', 'topic t: "\\u0663" is no partition'),
        ('{"t": {"0": 5}}', "t-0 must have a list of key ranges"),
        ('{"t": {"0": [5]}}', "t-0: 5 is no key range"),
        ('{"t": {"0": [[5, 5]]}}', "t-0: [5, 5] is no key range"),
        ('{"t": {"0": [[-1, 5]]}}', "t-0: [-1, 5] is no key range"),
        (f'{{"t": {{"0": [[0, {HASH_SPACE + 1}]]}}}}', "t-0: [0, 9223372036854775809] is no"),
        ('{"t": {"0": [[0, 5, 9]]}}', "t-0: [0, 5, 9] is no key range"),
        ('{"t": {"0": [[0, 5], [4, 9]]}}', "t-0: key ranges [0,5) and [4,9) overlap"),
        ('{"t": [NaN]}', "has NaN, which is no number of JSON"),
        ('{"t": ' + "[" * 100_000, "is nested too deeply"),
        ('{"t": [' + "9" * 5000 + "]}", ""),
    ],
)
def test_what_is_no_assignment_is_refused(text: str, says: str) -> None:
    assert fault(assign=text).startswith(f"assign: {says}")


def test_what_cuts_partitions_contradicts_ranges_of_the_user() -> None:
    given: dict[str, Any] = {"assign": '{"t": {"0": [[0, 5]]}}', "splitBy": "offset"}
    assert fault(**given).startswith("splitBy: cannot be offset where assign has key ranges")
    cuts = {
        "keyRanges": "2",
        "minPartitions": "4",
        "maxRecordsPerPartition": "5",
        "rangeAssignor": "adaptive",
    }
    parsed = parse_options({**SERVERS, "assign": given["assign"], **cuts}, streaming=True)
    assert parsed.warnings == tuple(
        f"option {name} has no effect on partitions whose key ranges are given in assign"
        for name in cuts
    )


# -- offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["earliest", "EARLIEST", " earliest "])
def test_offsets_may_be_words(text: str) -> None:
    assert reading(subscribe="t", startingOffsets=text).starting == EARLIEST


def test_offsets_of_partitions() -> None:
    found = reading(subscribe="t", startingOffsets='{"t": {"0": 23, "1": -2, "2": -1}}').starting
    assert found == PerPartition(
        FrozenMapping({T0: 23, T1: EARLIEST, TopicPartition("t", 2): LATEST})
    )


@given(st.dictionaries(PLACES, st.integers(-2, 2**63 - 1)))
def test_offsets_and_timestamps_are_what_was_written(places: dict[TopicPartition, int]) -> None:
    text = nested(dict(places))
    assert dict(parse_timestamps(text)) == places
    words = {-2: EARLIEST, -1: LATEST}
    assert dict(parse_per_partition(text).offsets) == {
        place: words.get(offset, offset) for place, offset in places.items()
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nowhere", 'is "nowhere"; write '),
        ("{nowhere}", "is not JSON"),
        ("23", "must be a JSON object"),
        ('{"t": 5}', "topic t must have an object"),
        ('{"t": {"0": -3}}', "t-0: -3 is not an offset"),
        ('{"t": {"0": 9223372036854775808}}', "t-0: 9223372036854775808 is not an offset"),
        ('{"t": {"0": "5"}}', 't-0: "5" is not an offset'),
        ('{"t": {"0": 5.0}}', "t-0: 5.0 is not an offset"),
        ('{"t": {"0": true}}', "t-0: true is not an offset"),
        ('{"t": {"0": null}}', "t-0: null is not an offset"),
        ('{"t": {"0": 1, "00": 2}}', "topic t has partition 0 twice"),
        ('{"t": {"0": 1}, "t": {}}', 'has "t" twice in one object'),
    ],
)
def test_what_is_no_offset_is_refused(text: str, says: str) -> None:
    assert fault(subscribe="t", startingOffsets=text).startswith(f"startingOffsets: {says}")
    found = fault(subscribe="t", startingOffsetsByTimestamp=text)
    assert found.startswith(
        f"startingOffsetsByTimestamp: {says.replace('an offset', 'a timestamp')}"
    )


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    ends: dict[str, Any] = {name: "latest"}
    found = fault(subscribe="t", **ends)
    assert found == f"{name}: is not valid in streaming queries (given: 'latest')"
    ignored = warnings({"endingTimestamp": "not looked at"})
    assert ignored == ("option endingTimestamp is ignored in streaming queries",)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets: can't be latest for batch queries"),
        ({"endingOffsets": "earliest"}, "endingOffsets: can't be earliest for batch queries"),
        (
            {"startingOffsets": '{"t": {"0": -1}}'},
            "startingOffsets: for t-0 can't be latest for batch queries",
        ),
        (
            {"endingOffsets": '{"t": {"0": -2}}'},
            "endingOffsets: for t-0 can't be earliest for batch queries",
        ),
    ],
)
def test_a_batch_query_does_not_begin_at_the_end(given: dict[str, str], says: str) -> None:
    assert fault(streaming=False, subscribe="t", **given).startswith(says)


def test_ends_and_starts_list_the_same_partitions() -> None:
    found = fault(
        streaming=False,
        subscribe="t",
        startingOffsets='{"t": {"0": 1, "1": 1}}',
        endingOffsets='{"t": {"0": 2}}',
    )
    assert found.startswith(
        "endingOffsets: must list the same partitions as startingOffsets, and does not"
    )


def test_an_end_is_not_before_its_start() -> None:
    found = fault(
        streaming=False,
        subscribe="t",
        startingOffsetsByTimestamp='{"t": {"0": 9, "1": 5}}',
        endingOffsetsByTimestamp='{"t": {"0": 8, "1": 5}}',
    )
    assert found.startswith(
        "startingOffsetsByTimestamp: starts t-0 at 9, after its end 8 in endingOffsetsByTimestamp"
    )


@pytest.mark.parametrize(
    ("read", "says"),
    [
        ({"subscribe": "t"}, "lists topic u, which is not read"),
        ({"subscribe": "t,u,v"}, "lacks topic v"),
        ({"subscribePattern": "^t$"}, "lists topic u, which is not read"),
        ({"assign": '{"t": [0, 1]}'}, "lists u-0, not read, and lacks t-1"),
    ],
)
def test_a_batch_query_lists_what_is_read_and_no_more(read: dict[str, Any], says: str) -> None:
    text = '{"t": {"0": 1}, "u": {"0": 1}}'
    assert fault(streaming=False, startingOffsets=text, **read).startswith(
        f"startingOffsets: {says}; all partitions that are read must be listed and no others"
    )
    # A stream that goes on from a checkpoint does not look at where it once began.
    assert reading(startingOffsets=text, **read)


def test_what_is_wrong_with_a_list_of_partitions_is_told() -> None:
    spec = PerPartition(FrozenMapping({T0: 1, U0: 1}))
    assert partitions_fault(spec, [T0, U0]) is None
    assert partitions_fault(spec, [T0, T1]) == (
        "lists u-0, not read, and lacks t-1; all partitions that are read must be listed and no "
        "others"
    )
    many = [TopicPartition("t", number) for number in range(9)]
    found = partitions_fault(TimestampPerPartition(FrozenMapping({T0: 1})), many)
    assert found is not None
    assert found.startswith("lacks t-1, t-2, t-3, t-4, t-5 and 3 more; ")


# -- timestamps -----------------------------------------------------------------------------------


def test_timestamps_outrank_offsets() -> None:
    given = {
        "subscribe": "t",
        "startingOffsets": "not looked at",
        "startingOffsetsByTimestamp": '{"t": {"0": 5}}',
    }
    parsed = parse_options({**SERVERS, **given}, streaming=True)
    assert parsed.options.starting == TimestampPerPartition(FrozenMapping({T0: 5}))
    assert parsed.warnings == (
        "option startingOffsets is ignored, because startingOffsetsByTimestamp is given",
    )
    parsed = parse_options({**SERVERS, **given, "startingTimestamp": "7"}, streaming=True)
    assert parsed.options.starting == AtTimestamp(7)
    assert parsed.warnings == (
        "option startingOffsetsByTimestamp is ignored, because startingTimestamp is given",
        "option startingOffsets is ignored, because startingTimestamp is given",
    )


def test_the_strategy_is_for_starts_alone() -> None:
    found = reading(
        streaming=False,
        subscribe="t",
        startingTimestamp="7",
        endingTimestamp="9",
        startingOffsetsByTimestampStrategy="Latest",
    )
    assert found.starting == AtTimestamp(7, "latest")
    assert found.ending == AtTimestamp(9, "latest")
    found = reading(streaming=False, subscribe="t", startingTimestamp="7", endingTimestamp="9")
    assert found.starting == AtTimestamp(7, "error")
    assert found.ending == AtTimestamp(9, "latest")


@pytest.mark.parametrize("text", ["-3", "x", "", "9223372036854775808", "1.5"])
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    found = fault(subscribe="t", startingTimestamp=text)
    assert found.startswith("startingTimestamp: is wrong")
    assert found.endswith("wanted an integer from -2 to 9223372036854775807")
