"""A letter without what its topic refuses: laws of the pure rule."""

from hypothesis import given
from hypothesis import strategies as st

from kshare.dead_letters.letter import LEFT_OUT, TIMESTAMP, Letter, Refusal

ERROR = [("__connect.errors.topic", b"orders"), ("__connect.errors.exception.message", b"x" * 4000)]
LETTERS = st.builds(
    Letter,
    st.just("orders-0@7"),
    st.none() | st.binary(max_size=20) | st.just(b"k" * 2_000_000),
    st.none() | st.binary(max_size=20) | st.just(b"v" * 2_000_000),
    st.integers(-1, 2**62),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=20)), max_size=3),
    st.just(ERROR),
)


@given(LETTERS, st.lists(st.sampled_from(Refusal), min_size=12, max_size=12))
def test_there_is_an_end_and_a_refused_part_is_not_sent_again(
    letter: Letter, refusals: list[Refusal]
) -> None:
    seen, steps = [letter], 0
    for refusal in refusals:
        smaller = seen[-1].without(refusal)
        if smaller is None:
            continue
        assert smaller not in seen
        assert len(smaller.left_out) > len(seen[-1].left_out)
        steps += 1
        seen.append(smaller)
    assert steps <= 4
    for each in seen[1:]:
        headers = dict(each.all_headers())
        assert headers[LEFT_OUT] == ", ".join(each.left_out).encode()
        assert all(name in headers for name, _ in ERROR)
        if "timestamp" in each.left_out:
            assert (headers[TIMESTAMP], each.timestamp) == (str(letter.timestamp).encode(), -1)


@given(LETTERS)
def test_what_is_too_large_points_at_its_record_within_16_kib(letter: Letter) -> None:
    pointer = letter.without(Refusal.SIZE)
    assert pointer is not None
    assert (pointer.value, pointer.key) == (b"", letter.key)  # no tombstone
    small = pointer.without(Refusal.SIZE)
    assert small is not None
    assert small.key == b"orders-0@7"
    assert small.size < 16 << 10
    assert small.without(Refusal.SIZE) is None


def test_one_without_a_key_gets_one_and_stays_whole() -> None:
    whole = Letter("orders-0@7", None, b"v", 5, [("h", b"1")], ERROR)
    keyed = whole.without(Refusal.INVALID)
    assert keyed is not None
    assert (keyed.key, keyed.value, keyed.headers) == (b"orders-0@7", b"v", [("h", b"1")])
    assert keyed.left_out == ("no key",)
