"""CRC-64-AVRO fingerprints of schemas, by which Avro's single-object encoding names them.

They are those of the schema's Parsing Canonical Form, as Avro's specification says.
"""

import json
from typing import Any, Final

__all__ = ["PRIMITIVES", "canonical_form", "fingerprint", "full_name"]

_EMPTY: Final = 0xC15D213AA4D7A795
PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
_ORDER: Final = ("name", "type", "fields", "symbols", "items", "values", "size")


def _table() -> list[int]:
    table = []
    for number in range(256):
        entry = number
        for _ in range(8):
            entry = (entry >> 1) ^ (_EMPTY if entry & 1 else 0)
        table.append(entry)
    return table


_TABLE: Final = _table()


def fingerprint(schema: str) -> int:
    """The fingerprint of a schema, as a signed number of 64 bits.

    Args:
        schema: The schema as JSON.

    Raises:
        ValueError: It is no schema.
    """
    crc = _EMPTY
    for byte in canonical_form(schema).encode():
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc - (1 << 64) if crc >> 63 else crc


def canonical_form(schema: str) -> str:
    """The Parsing Canonical Form of a schema.

    Raises:
        ValueError: It is no schema.
    """
    try:
        form = _form(json.loads(schema), "")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is no schema of Avro: {error!r}") from None
    return json.dumps(form, separators=(",", ":"), ensure_ascii=False)


def _form(schema: Any, namespace: str) -> Any:
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else full_name(schema, namespace)
    if isinstance(schema, list):
        return [_form(each, namespace) for each in schema]
    kind = schema["type"]
    if not isinstance(kind, str) or kind in PRIMITIVES:
        return _form(kind, namespace)
    found: dict[str, Any] = {"type": kind}
    if kind == "array":
        found["items"] = _form(schema["items"], namespace)
    elif kind == "map":
        found["values"] = _form(schema["values"], namespace)
    else:
        name: str = schema["name"]
        within = schema.get("namespace", namespace)
        found["name"] = full = full_name(name, within)
        within = full.rpartition(".")[0]
        if kind == "enum":
            found["symbols"] = schema["symbols"]
        elif kind == "fixed":
            found["size"] = int(schema["size"])
        else:
            found["type"] = "record"
            found["fields"] = [
                {"name": field["name"], "type": _form(field["type"], within)}
                for field in schema["fields"]
            ]
    return {name: found[name] for name in _ORDER if name in found}


def full_name(name: str, namespace: str) -> str:
    """The full name of a type that is named within a namespace; empty for none."""
    return name if "." in name or not namespace else f"{namespace}.{name}"
