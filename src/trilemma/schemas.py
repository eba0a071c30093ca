"""JSON Schemas (draft 2020-12) of documents, from the dataclasses and typed dictionaries that the documents are made of."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from trilemma.columns import columns_of

_SECONDS = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "seconds": {"type": "number"}},
    "required": ["name", "seconds"],
}


def schema_of_type(kind: Any) -> dict[str, Any]:
    """The schema of what `trilemma.columns.document_of` makes of a dataclass, or of plain data of a type."""
    if is_typeddict(kind):
        return _of_typed_dict(kind)
    if is_dataclass(kind):
        return _of_dataclass(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Mapping and arguments[1] is float:
        return {"type": "array", "items": _SECONDS}
    if origin in (list, tuple):
        return {"type": "array", "items": schema_of_type(arguments[0])}
    if origin in (dict, Mapping) or kind is dict:
        return {"type": "object"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of_type(one) for one in arguments]}
    if kind is Any:
        return {}
    if kind is type(None):
        return {"type": "null"}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]}


def _of_typed_dict(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    required = [key for key, hint in hints.items() if get_origin(hint) is not NotRequired]
    stated = {key: hint if key in required else get_args(hint)[0] for key, hint in hints.items()}
    properties = {key: schema_of_type(hint) for key, hint in stated.items()}
    return {"type": "object", "properties": properties, "required": required}


def _of_dataclass(kind: Any) -> dict[str, Any]:
    hints, required = get_type_hints(kind), []
    properties: dict[str, Any] = {}
    for name, told in columns_of(kind):
        name, _, end = name.partition(".")
        hint = hints[name] if name in hints else get_type_hints(getattr(kind, name).fget)["return"]
        stated = [one for one in get_args(hint) if one is not type(None)]
        optional = type(None) in get_args(hint) and told["keep"] != "none"
        one = stated[0] if optional and len(stated) == 1 else hint
        if told["inline"]:
            inner = _of_dataclass(one)
            properties |= inner["properties"]
            required += inner["required"]
            continue
        key, many = told["key"] or name, _is_many(one)
        if told["finite"]:
            properties[key] = schema_of_type(float | None)
        elif told["whole"] or end:
            properties[key] = {"type": "integer" if told["whole"] else "number"}
        else:
            whole = told["explained"] or (told["exact"] and get_origin(one) is Mapping)
            properties[key] = schema_of_type(dict if many and whole else one)
        is_left_out = many and not told["keep"] and told["key"] != "items"
        required += [] if optional or is_left_out or told["explained"] else [key]
    return {"type": "object", "properties": properties, "required": required}


def _is_many(hint: Any) -> bool:
    return get_origin(hint) in (Mapping, tuple)
