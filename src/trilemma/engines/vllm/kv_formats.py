"""vLLM's names of KV cache types as number formats; those that are its own stand in ``data/engines/vllm.toml``."""

from __future__ import annotations

from functools import cache

from trilemma.data.files import read_data
from trilemma.errors import UnknownName
from trilemma.formats import catalogue
from trilemma.formats.formats import Format


def kv_format(name: str | None, *, model_dtype: Format) -> Format:
    """The cache type called ``name``; None and "auto" follow the model's own format. Raises `UnknownName`."""
    asked = (name or "auto").strip().lower().replace("-", "_")
    if asked in ("auto", ""):
        return model_dtype
    own = _own()
    if asked in own:
        return own[asked]
    try:
        return catalogue.get(asked)
    except UnknownName:
        raise UnknownName("KV cache type", asked, (*own, "fp8", "fp8_e4m3", "fp8_e5m2", "bf16", "nvfp4")) from None


@cache
def _own() -> dict[str, Format]:
    found: dict[str, Format] = {}
    for row in read_data("engines/vllm.toml")["kv_format"]:
        if "same_as" in row:
            found[row["name"]] = catalogue.get(row["same_as"])
        else:
            found[row["name"]] = Format(
                name=row["name"], bits=row["bits"], kind=row["kind"], granularity="channel", scale_bits=row["scale_bits"],
                source=row["source"],
            )  # fmt: skip
    return found
