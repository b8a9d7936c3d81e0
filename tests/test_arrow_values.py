"""Arrow values that are made without pandas: they are as pyarrow's own."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kshare.arrow_values import int64_array, int64_numbers, scalar, string_array

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SMALL = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers(values: list[int]) -> None:
    made = int64_array(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.int64()))


@given(
    st.lists(st.integers(0, 99)),
    st.integers(0, 9),
    st.sampled_from([pa.int64(), pa.int32()]),
)
def test_numbers(values: list[int], start: int, of_type: pa.DataType) -> None:
    array = pa.array(values, of_type)[start:]
    for numbers in (array, pa.chunked_array([array, array], of_type)):
        assert int64_numbers(numbers).tolist() == numbers.to_pylist()


@given(st.lists(TEXTS))
def test_strings(values: list[str]) -> None:
    made = string_array(iter(values))
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))


@given(TEXTS | SMALL)
def test_a_scalar(value: str | int) -> None:
    made = scalar(value)
    made.validate(full=True)
    assert made.equals(pa.scalar(value, pa.string() if isinstance(value, str) else pa.int32()))
