"""The fields that are wanted of a format's rows, by dotted paths."""

from collections.abc import Iterable
from typing import TypeAlias

import pyarrow as pa

__all__ = ["selected"]

_Tree: TypeAlias = dict[str, "_Tree"]
"""The wanted fields of a struct, each with those below it; none there: all are."""


def selected(kind: pa.DataType, fields: Iterable[str]) -> pa.DataType:
    """Return a type with the wanted fields alone, in the type's own order.

    Args:
        kind: The type of the rows.
        fields: Paths such as ``user`` or ``items.sku``: a path goes on in the items of a list and
            in the values of a map. Both ``items`` and ``items.sku``: the whole of ``items``. No
            path: all fields.

    Raises:
        ValueError: A path names a field that is not there.
    """
    paths = [tuple(field.split(".")) for field in fields]
    whole = set(paths)
    tree: _Tree = {}
    for path in paths:
        at = tree
        for length, name in enumerate(path, 1):
            if name in at and not at[name] and path[:length] in whole:
                break  # all of it is wanted already
            at = at.setdefault(name, {})
            if path[:length] in whole:
                at.clear()
                break
    return _pruned(kind, tree, "") if tree else kind


def _pruned(kind: pa.DataType, tree: _Tree, path: str) -> pa.DataType:
    if not tree:
        return kind
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_pruned(kind.value_type, tree, path)))
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(_pruned(kind.item_type, tree, path))
        return pa.map_(kind.key_field, item)
    missing = [name for name in tree if not (pa.types.is_struct(kind) and kind.names.count(name))]
    if missing:
        there = (
            f"there are {', '.join(kind.names)}" if pa.types.is_struct(kind) else f"it is {kind}"
        )
        raise ValueError(f"there is no field {path}{missing[0]}: {there}")
    return pa.struct(
        [
            field.with_type(_pruned(field.type, tree[field.name], f"{path}{field.name}."))
            for field in kind
            if field.name in tree
        ]
    )
