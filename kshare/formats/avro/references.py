"""Schemas that refer to others of a registry, as one schema.

A registry keeps a schema's references beside it; the types that they define are known by their full
names. Each is put where it is named first, with the namespace that it has by itself.
"""

import json
from collections.abc import Mapping
from typing import Any

from kshare.formats.avro.fingerprint import PRIMITIVES, full_name

__all__ = ["with_references"]


def with_references(schema: str, references: Mapping[str, str]) -> str:
    """A schema in which the types that it refers to are defined.

    Args:
        schema: The schema as JSON.
        references: Schemas by the full name of the type that each defines.

    Raises:
        ValueError: One of the schemas is no JSON.
    """
    if not references:
        return schema
    put = _Putting({name: json.loads(text) for name, text in references.items()})
    try:
        return json.dumps(put.form(json.loads(schema), ""))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is no schema of Avro: {error!r}") from None


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
        if not isinstance(kind, str) or kind not in {"record", "error", "enum", "fixed"}:
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
        full = full_name(name, namespace)
        if full not in self._left:
            return name
        definition = self._left.pop(full)
        if isinstance(definition, dict) and "." not in definition.get("name", "."):
            definition = {"namespace": "", **definition}  # not the one around it
        return self.form(definition, "")
