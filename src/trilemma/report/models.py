"""What a model is made of, as a document and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.formats import catalogue as formats
from trilemma.models import parameters
from trilemma.models.architecture import DenseFfn, ExpertFfn, Layer, Model
from trilemma.models.attention import Mixer
from trilemma.models.cache_law import CacheLaw
from trilemma.quantities import GIB

SCHEMA = "trilemma/model@1"


def model_document(model: Model) -> dict[str, Any]:
    """The JSON of ``models MODEL``: parameters, layers by kind, cache laws at 16 bits on one rank, what was not understood."""
    found = parameters.count(model)
    laws = [(mixer, count, _law(mixer)) for mixer, count in model.mixers.items()]
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "name": model.name,
        "family": model.family,
        "source": model.source,
        "parameters": {
            "total": found.total,
            "active": found.active,
            "embedding": found.embedding,
            "vision": found.vision,
            "mtp": found.mtp,
        },
        "weights_bytes": parameters.weight_bytes(model),
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "state_bytes": sum(law.fixed_bytes * count for _, count, law in laws),
        "layers": layers_by_kind(model),
        "mtp_layers": len(model.mtp_layers),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "max_positions": model.max_positions,
        "tied_embeddings": model.tied_embeddings,
        "dtype": model.dtype.name,
        "quantization": _quantization(model),
        "cache": [_cache_row(mixer, count, law) for mixer, count, law in laws],
        "roles": [
            {"role": role, "parameters": elements, "bytes": stored}
            for role, (elements, stored) in parameters.by_role(model).items()
        ],
        "vision": dict(model.vision),
        "unknown_fields": list(model.unknown_fields),
        "assumptions": list(model.assumptions),
    }
    if model.max_positions is None:
        del document["max_positions"]
    return document


def kv_bytes_per_token(model: Model) -> float:
    """Bytes that one more token adds to an unquantised 16-bit cache on one device while no window is full."""
    laws = [(_law(mixer), count) for mixer, count in model.mixers.items()]
    total = float(sum(law.bytes_per_token * count / law.stride for law, count in laws))
    return int(total) if total == int(total) else total


def layers_by_kind(model: Model) -> dict[str, int]:
    """Kind of cache → how many decoder layers keep it; "none" counts layers without a mixer."""
    kinds: dict[str, int] = {}
    for layer in model.layers:
        kind = _law(layer.mixer).kind if layer.mixer is not None else "none"
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def _law(mixer: Mixer) -> CacheLaw:
    return mixer.cache_law(tp=1, kv_format=formats.get("bf16"))


def _quantization(model: Model) -> dict[str, Any] | None:
    stated = model.quantization
    if stated is None:
        return None
    return {
        "method": stated.method,
        "weight_format": stated.weight_format.name if stated.weight_format is not None else None,
        "kv_format": stated.kv_format,
        "ignored": len(stated.ignored),
        "notes": list(stated.notes),
    }


def _cache_row(mixer: Mixer, count: int, law: CacheLaw) -> dict[str, Any]:
    row: dict[str, Any] = {
        "kind": law.kind,
        "layers": count,
        "bytes_per_token": law.bytes_per_token,
        "fixed_bytes": law.fixed_bytes,
        "stride": law.stride,
        "shard": law.shard,
        "formula": mixer.cache_formula,
    }
    if law.window is not None:
        row["window"] = law.window
    return row


def render_model(model: Model, *, explain: bool = False) -> str:
    """The same for people; ``explain`` adds formulas and the layers one by one."""
    document = model_document(model)
    lines = [*_head(model, document), "", *_roles(document), "", *_layers(model, document, explain=explain)]
    for title, key in (("not understood", "unknown_fields"), ("assumed", "assumptions")):
        if document[key]:
            lines += ["", f"{title}:", *(f"  {text}" for text in document[key])]
    if explain:
        lines += ["", "layer by layer:", *(f"  {_layer(layer)}" for layer in (*model.layers, *model.mtp_layers))]
    return "\n".join(lines)


def _head(model: Model, document: Mapping[str, Any]) -> list[str]:
    found = document["parameters"]
    lines = [
        f"{model.name}  ({model.family})",
        f"  parameters   {_billions(found['total'])} total, {_billions(found['active'])} active per text token",
    ]
    if found["vision"]:
        lines.append(f"  of these     {_billions(found['vision'])} in the vision tower")
    if found["mtp"]:
        lines.append(f"  apart        {_billions(found['mtp'])} in {document['mtp_layers']} MTP layer(s)")
    lines.append(f"  weights      {document['weights_bytes'] / GIB:,.2f} GiB as stored{_scheme(document)}")
    lines.append(f"  cache        {document['kv_bytes_per_token']:,.0f} bytes a token at 16 bits on one device")
    if document["state_bytes"]:
        lines.append(f"  state        {document['state_bytes']:,.0f} bytes a sequence besides")
    if model.max_positions:
        lines.append(f"  context      {model.max_positions:,} tokens at most")
    if model.source:
        lines.append(f"  source       {model.source}")
    return lines


def _scheme(document: Mapping[str, Any]) -> str:
    stated = document["quantization"]
    if stated is None:
        return f" ({document['dtype']})"
    return f" ({stated['method']}: {stated['weight_format'] or 'format not stated'})"


def _roles(document: Mapping[str, Any]) -> list[str]:
    rows = [f"  {'role':<22}{'parameters':>20}{'GiB':>12}"]
    rows += [f"  {row['role']:<22}{row['parameters']:>20,}{row['bytes'] / GIB:>12.3f}" for row in document["roles"]]
    return rows


def _layers(model: Model, document: Mapping[str, Any], *, explain: bool) -> list[str]:
    rows = [f"  {'layers':<8}{'cache':<18}{'bytes/token':>14}{'fixed bytes':>16}{'window':>10}{'stride':>8}"]
    for row in document["cache"]:
        window = f"{row['window']:,}" if "window" in row else "-"
        rows.append(
            f"  {row['layers']:<8}{row['kind']:<18}{row['bytes_per_token']:>14,}{row['fixed_bytes']:>16,}"
            f"{window:>10}{row['stride']:>8}"
        )
        if explain:
            rows.append(f"          {row['formula']}")
    without = document["layers"].get("none", 0)
    if without:
        rows.append(f"  {without:<8}no attention")
    if model.mtp_layers:
        rows.append(f"  {len(model.mtp_layers):<8}MTP")
    return rows


def _layer(layer: Layer) -> str:
    mixer = type(layer.mixer).__name__ if layer.mixer is not None else "-"
    match layer.ffn:
        case None:
            ffn = "-"
        case DenseFfn():
            ffn = f"dense {layer.ffn.intermediate:,}"
        case ExpertFfn():
            shared = f" + {layer.ffn.shared_intermediate:,} shared" if layer.ffn.shared_intermediate else ""
            ffn = f"{layer.ffn.top_k} of {layer.ffn.experts} experts of {layer.ffn.intermediate:,}{shared}"
    return f"{layer.index:>4}  {mixer:<20} {ffn}"


def _billions(count: int) -> str:
    return f"{count:,} ({count / 1e9:,.2f} B)" if count >= 10**9 else f"{count:,}"
