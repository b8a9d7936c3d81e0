"""Which records a scan takes: bands, against plain sets of (offset, cell)."""

from itertools import pairwise

from hypothesis import given

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange
from kshare.core.progress import Rectangle, Slice, Stripe
from kshare.read.decode.wanted import Bands
from tests.support.cells import Cells, cells_of, pieces, within

LOW, HIGH = HashRange(0, 1 << 62), HashRange(1 << 62, HASH_SPACE)


def hashes_of(bands: Bands, band: int) -> list[HashRange]:
    """The hash ranges of a band; all hashes, if it has none."""
    first, end = bands.range_counts[band : band + 2].tolist()
    ranges = zip(bands.lows[first:end].tolist(), bands.lasts[first:end].tolist(), strict=True)
    return [HashRange(low, last + 1) for low, last in ranges] or [WHOLE]


def cells_of_bands(bands: Bands) -> Cells:
    return {
        (offset, cell)
        for i, (start, end) in enumerate(zip(bands.starts, bands.ends, strict=True))
        for hashes in hashes_of(bands, i)
        for offset in range(start, end)
        for cell in within(hashes)
    }


@given(pieces(min_size=1))
def test_bands_hold_the_same(given_: list[Rectangle]) -> None:
    bands = Bands.of(Slice("t", 0, given_).stripes)
    assert cells_of_bands(bands) == cells_of(given_)
    assert len(bands.range_counts) == len(bands.starts) + 1
    ends = zip(bands.starts.tolist(), bands.ends.tolist(), strict=True)
    assert all(one[1] <= two[0] and one[0] < one[1] for one, two in pairwise(ends))
    for i in range(len(bands.starts)):
        hashes = hashes_of(bands, i)
        assert all(one.hi < two.lo for one, two in pairwise(hashes))
        # The hash of a key is computed only where it decides.
        assert hashes != [WHOLE] or bands.range_counts[i] == bands.range_counts[i + 1]


def test_bands_of_two_stripes() -> None:
    bands = Bands.of([Stripe(LOW, (1, 5, 9, 10)), Stripe(HIGH, (3, 8))])
    found = [
        (start, end, hashes_of(bands, i))
        for i, (start, end) in enumerate(zip(bands.starts, bands.ends, strict=True))
    ]
    assert found == [(1, 3, [LOW]), (3, 5, [WHOLE]), (5, 8, [HIGH]), (9, 10, [LOW])]
