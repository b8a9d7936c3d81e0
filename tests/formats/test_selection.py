"""Which fields of a type are wanted."""

import pyarrow as pa
import pytest

from kshare.formats.selection import selected

ITEM = pa.struct([("sku", pa.string()), ("price", pa.int64())])
ROW = pa.struct(
    [
        ("user", pa.string()),
        ("qty", pa.int32()),
        ("items", pa.list_(pa.field("element", ITEM))),
        ("prices", pa.map_(pa.string(), ITEM)),
    ]
)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ([], ROW),
        (["user", "qty", "items", "prices"], ROW),
        (["qty", "user"], pa.struct([ROW.field("user"), ROW.field("qty")])),
        (
            ["items.sku", "user"],
            pa.struct(
                [
                    ("user", pa.string()),
                    ("items", pa.list_(pa.field("element", pa.struct([("sku", pa.string())])))),
                ]
            ),
        ),
        (
            ["prices.price"],
            pa.struct([("prices", pa.map_(pa.string(), pa.struct([("price", pa.int64())])))]),
        ),
        (["items.sku", "items"], pa.struct([ROW.field("items")])),
        (["items", "items.sku"], pa.struct([ROW.field("items")])),
        (["items", "items"], pa.struct([ROW.field("items")])),
    ],
)
def test_fields_keep_the_order_of_the_type(fields: list[str], wanted: pa.DataType) -> None:
    assert selected(ROW, fields) == wanted


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("usr", "there is no field usr: there are user, qty, items, prices"),
        ("items.name", "there is no field items.name: there are sku, price"),
        ("qty.x", "there is no field qty.x: it is int32"),
        ("", "there is no field : there are user, qty, items, prices"),
    ],
)
def test_a_field_that_is_not_there(field: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        selected(ROW, [field])
