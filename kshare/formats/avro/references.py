"""Schemas that refer to others of a registry, as one schema.

A registry keeps a schema's references beside it; the types that they define, also within one
another, are known by their full names. Each is put where it is named first, with the namespace that
it has by itself.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from kshare.formats.avro.fingerprint import PRIMITIVES, full_name

__all__ = ["records_of", "with_references"]

_DEFINED: Final = frozenset({"record", "error", "enum", "fixed"})


def with_references(schema: str, references: Mapping[str, str]) -> str:
    """A schema in which the types that it refers to are defined.

    Args:
        schema: The schema as JSON.
        references: Schemas by the full name of the type that each defines. It may define others in
            itself.

    Raises:
        ValueError: One of the schemas is no JSON.
    """
    if not references:
        return schema
    plain = json.loads(schema)
    others = {name: json.loads(text) for name, text in references.items()}
    definitions: dict[str, Any] = {}
    try:
        for name, other in others.items():
            taken = _taken(other, "", definitions)
            if taken != name:  # a union, or under the name that a reference calls it by
                definitions.setdefault(name, taken)
        return json.dumps(_Putting(definitions).form(plain, ""))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is no schema of Avro: {error!r}") from None


def records_of(schema: str) -> dict[str, str]:
    """The records of a union, or a record, as a schema each, by full name.

    Args:
        schema: The schema as JSON.

    Raises:
        ValueError: It is no schema of one record or of several.
    """
    plain = json.loads(schema)
    listed = plain if isinstance(plain, list) else [plain]
    definitions: dict[str, Any] = {}
    try:
        names = [_taken(each, "", definitions) for each in listed]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is no schema of Avro: {error!r}") from None
    for name in names:
        if not isinstance(definitions.get(name), dict) or "fields" not in definitions[name]:
            raise ValueError(f"has {name!r} beside records, where several schemas are wanted")
    texts = {name: json.dumps(each) for name, each in definitions.items()}
    return {
        name: with_references(
            texts[name], {other: text for other, text in texts.items() if other != name}
        )
        for name in names
    }


def _taken(schema: Any, namespace: str, definitions: dict[str, Any]) -> Any:
    """A schema with names in place of the types that it defines, which are taken out.

    Args:
        schema: The schema.
        namespace: The namespace around it.
        definitions: Gets the types by full name; each names others by their full names.
    """
    if isinstance(schema, str):
        is_name = schema not in PRIMITIVES and schema not in {"array", "map"}
        return full_name(schema, namespace) if is_name else schema
    if isinstance(schema, list):
        return [_taken(each, namespace, definitions) for each in schema]
    found, kind = dict(schema), schema["type"]
    if not isinstance(kind, str) or kind not in _DEFINED:
        found["type"] = _taken(kind, namespace, definitions)
        for name in ("items", "values"):
            if name in found:
                found[name] = _taken(found[name], namespace, definitions)
        return found
    full = full_name(schema["name"], schema.get("namespace", namespace))
    found["name"], found["namespace"] = full.rpartition(".")[2], full.rpartition(".")[0]
    definitions[full] = found
    if "fields" in found:
        found["fields"] = [
            {**field, "type": _taken(field["type"], found["namespace"], definitions)}
            for field in found["fields"]
        ]
    return full if "." in full or not namespace else f".{full}"  # not of the one around it


class _Putting:
    """Puts definitions where they are named first.

    Args:
        left: The definitions that are not in their place, by full name.
    """

    def __init__(self, left: dict[str, Any]) -> None:
        self._left = left

    def form(self, schema: Any, namespace: str) -> Any:
        """A schema with definitions.

        Args:
            schema: The schema.
            namespace: The namespace around it.
        """
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if isinstance(schema, list):
            return [self.form(each, namespace) for each in schema]
        found, kind = dict(schema), schema["type"]
        if not isinstance(kind, str) or kind not in _DEFINED:
            found["type"] = self.form(kind, namespace)
            for name in ("items", "values"):
                if name in found:
                    found[name] = self.form(found[name], namespace)
            return found
        full = full_name(schema["name"], schema.get("namespace", namespace))
        self._left.pop(full, None)  # it is defined here
        if "fields" in found:
            within = full.rpartition(".")[0]
            found["fields"] = [
                {**field, "type": self.form(field["type"], within)} for field in found["fields"]
            ]
        return found

    def _named(self, name: str, namespace: str) -> Any:
        if name in PRIMITIVES or name in {"array", "map"}:
            return name
        full = full_name(name, namespace).removeprefix(".")
        if full not in self._left:
            return name.removeprefix(".")
        definition = self._left.pop(full)
        if isinstance(definition, dict) and "." not in definition.get("name", "."):
            definition = {"namespace": "", **definition}  # not the one around it
        return self.form(definition, "")
