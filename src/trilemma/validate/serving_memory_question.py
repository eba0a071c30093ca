"""One row of a serving-memory table read as a question: which model, on which card, laid out and started how.

Columns win over names: the quantisation column decides where the model's files do not say, the row's own memory total
beats the catalogue. Whatever had to be filled in is listed; what cannot be read makes the row unusable with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import Model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import GIB
from trilemma.validate.dating import date_of_vllm_issue, parse_date
from trilemma.validate.tables import Row, UnusableRow

#: Quantisations whose bits a row does not state: printed weights replace ours.
UNSTATED_BITS = ("exl3", "exl2")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked of the engine. ``version`` None asks for the newest facts, widened, because the row dates nothing."""

    model: Model
    accelerator: Accelerator
    layout: Layout
    options: ServeOptions
    draft: Draft | None
    version: str | None
    version_known: bool
    capacity_bytes: float | None
    quantization: str
    utilisation_stated: bool
    assumed: tuple[str, ...]

    @property
    def weights_unstated(self) -> bool:
        """Whether the row does not say how many bits a weight has, so that weights cannot be predicted."""
        return self.quantization in UNSTATED_BITS


def read_question(row: Row, models_dir: str | Path | None) -> Question:
    """The question of one row. Raises `UnusableRow` with the reason where the row lacks what a prediction needs."""
    assumed: list[str] = []
    _engine(row)
    layout = _layout(row, assumed)
    model, quantization = _model(row, models_dir, assumed)
    accelerator, capacity_bytes = _card(row, assumed)
    version, known = _version(row, assumed)
    flags = _other_flags(row, assumed)
    draft = _draft(row, assumed)
    options = _options(row, flags, assumed)
    dcp = flags.get("decode_context_parallel_size", 1)
    try:
        layout = Layout(tp=layout.tp, pp=layout.pp, dp=layout.dp, ep=layout.ep, dcp=int(dcp))
    except (InputError, ValueError) as error:
        raise UnusableRow(f"layout: {error}") from None
    return Question(
        model=model,
        accelerator=accelerator,
        layout=layout,
        options=options,
        draft=draft,
        version=version,
        version_known=known,
        capacity_bytes=capacity_bytes,
        quantization=quantization,
        utilisation_stated=options.memory_fraction is not None,
        assumed=tuple(assumed),
    )


def _engine(row: Row) -> None:
    engine = row.text("engine").lower()
    if not engine:
        raise UnusableRow("names no engine")
    if engine != "vllm":
        why = "a fork with rules of its own" if "vllm" in engine else "its memory rules are not modelled yet"
        raise UnusableRow(f"engine {shorten(row.text('engine'))!r}: {why}")


def _layout(row: Row, assumed: list[str]) -> Layout:
    tp, pp, dp = (row.whole(column, low=1, high=4096) for column in ("tp", "pp", "dp"))
    gpus = row.whole("gpus_used", low=1, high=65536)
    if (tp, pp, dp) == (None, None, None):
        if gpus != 1:
            raise UnusableRow("names no layout (tp, pp or dp)")
        assumed.append("tp 1: one GPU")
    if tp is None:
        rest = (pp or 1) * (dp or 1)
        if gpus is not None and gpus % rest:
            raise UnusableRow(f"{gpus} GPUs are not a multiple of pp x dp = {rest}")
        tp = gpus // rest if gpus is not None else 1
        assumed.append(f"tp {tp}: what pp and dp leave of the GPUs")
    pp, dp = pp or 1, dp or 1
    text = row.text("ep").lower()
    ep = tp * dp if text in ("true", "yes", "on") else 1
    if text not in ("", "true", "yes", "on", "false", "no", "off"):
        ep = row.whole("ep", low=1, high=65536) or 1
    return Layout(tp=tp, pp=pp, dp=dp, ep=ep)


def _model(row: Row, models_dir: str | Path | None, assumed: list[str]) -> tuple[Model, str]:
    name = row.text("model")
    if not name:
        raise UnusableRow("names no model")
    model = _loaded(name[:300], None if models_dir is None else str(models_dir))
    if isinstance(model, str):
        raise UnusableRow(model)
    text = row.text("quantization").lower()
    if model.quantization is not None:
        return model, _first_word(text) or model.quantization.method
    scheme = quantization_scheme(text, name)
    if scheme is None or scheme in UNSTATED_BITS:
        return model, scheme or "none"
    requantized = _requantized(name[:300], None if models_dir is None else str(models_dir), scheme)
    if isinstance(requantized, str):
        raise UnusableRow(f"quantization {shorten(row.text('quantization'))!r}: {requantized}")
    assumed.append(f"weights stored as {scheme}: the row says {row.text('quantization') or name!r}, the config nothing")
    return requantized, scheme


@lru_cache(maxsize=512)
def _loaded(name: str, models_dir: str | None) -> Model | str:
    """The model, or why there is none (cached: tables name the same model again and again)."""
    from trilemma.models.resolve import load_model

    try:
        return load_model(name, models_dir=models_dir)
    except InputError as error:
        return str(error)


@lru_cache(maxsize=512)
def _requantized(name: str, models_dir: str | None, scheme: str) -> Model | str:
    from trilemma.models.quantized import requantize

    model = _loaded(name, models_dir)
    if isinstance(model, str):
        return model
    try:
        return requantize(model, scheme)
    except InputError as error:
        return str(error)


#: What a quantisation column, or failing that a model name, says → scheme; the first that is found decides.
_SCHEMES: tuple[tuple[str, str], ...] = (
    ("exl3", "exl3"),
    ("exl2", "exl2"),
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("mxfp8", "mxfp8"),
    ("awq", "awq"),
    ("gptq", "gptq"),
    ("autoround", "gptq"),
    ("w4a16", "w4a16"),
    ("w8a16", "w8a16"),
    ("w8a8", "w8a8"),
    ("int8", "w8a8"),
    ("fp8", "fp8"),
    ("bitsandbytes", "bitsandbytes"),
    ("bnb", "bitsandbytes"),
    ("nf4", "bitsandbytes"),
    ("int4", "w4a16"),
    ("4bit", "w4a16"),
    ("4-bit", "w4a16"),
)
_GENERIC = ("compressed-tensors", "compressed_tensors", "modelopt", "quark", "auto")


def quantization_scheme(text: str, model_name: str) -> str | None:
    """The scheme that a quantisation column means; None for weights as the config stores them.

    A toolkit's name alone ("compressed-tensors") does not say the bits: then the model's name does. Raises `UnusableRow`.
    """
    text = text.lower()
    generic = any(word in text for word in _GENERIC)
    for place in (text, model_name.lower()) if not text or generic else (text,):
        if place in ("none", "bf16", "bfloat16", "fp16", "float16", "no"):
            return None
        for word, scheme in _SCHEMES:
            if word in place:
                return scheme
    if not text:
        return None
    raise UnusableRow(f"quantization {shorten(text)!r} does not say how weights are stored")


def _first_word(text: str) -> str:
    return re.split(r"[ (]", text, maxsplit=1)[0]


def _card(row: Row, assumed: list[str]) -> tuple[Accelerator, float | None]:
    name = row.text("gpu")
    total_gib = row.number("gpu_total_gib", low=0.5, high=4096)
    if not name:
        raise UnusableRow("names no GPU")
    if " + " in name:
        raise UnusableRow(f"GPU {shorten(name)!r}: unlike cards in one engine are not modelled")
    found = _found_card(name[:300], total_gib)
    if isinstance(found, str):
        raise UnusableRow(found)
    accelerator, note = found
    if note:
        assumed.append(note)
    if total_gib is None:
        assumed.append("memory of the card from the catalogue")
    return accelerator, None if total_gib is None else total_gib * GIB


@lru_cache(maxsize=512)
def _found_card(name: str, total_gib: float | None) -> tuple[Accelerator, str] | str:
    from trilemma.hardware.catalogue import find_measured

    try:
        found = find_measured(name, total_gib)
    except InputError as error:
        return str(error)
    return found if isinstance(found, tuple) else (found, "")


def _version(row: Row, assumed: list[str]) -> tuple[str | None, bool]:
    """The release whose facts apply, and whether the row (or its date) says so.

    A fork's own numbers do not follow upstream's, so a fork that states its build date takes the release of that date.
    """
    text = row.text("engine_version")
    number = re.match(r"v?([0-9]+(?:\.[0-9]+){1,3}(?:rc[0-9]+)?)", text)
    day = parse_date(text) if "fork" in text.lower() else None
    if day is not None:
        version = release_of(day)
        assumed.append(f"vLLM {version}: the release of {day}, when the fork was built")
        return version, True
    if number is not None:
        return number.group(1), True
    day = parse_date(row.text("date"))
    if day is not None:
        version = release_of(day)
        assumed.append(f"vLLM {version}: the release of {day}")
        return version, True
    cited = date_of_vllm_issue(row.text("source_ref")) or date_of_vllm_issue(row.text("source"))
    if cited is not None:
        version = release_of(cited[1])
        assumed.append(f"vLLM {version}: the release when issue {cited[0]} was opened, about {cited[1]}")
        return version, True
    assumed.append("newest vLLM: the row names neither a version nor a date")
    return None, False


def release_of(day: Any) -> str | None:
    """The newest vLLM release that is not later than ``day``."""
    from trilemma.engines.vllm.facts import release_of_date

    return release_of_date(day)


_FLAG = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)\s*=\s*([^;,\s]+)")
_KNOWN_FLAGS = ("decode_context_parallel_size", "mamba_cache_mode")


def _other_flags(row: Row, assumed: list[str]) -> Mapping[str, str]:
    text = row.text("other_flags")[:1000]
    flags = {name.lower().replace("-", "_"): value for name, value in _FLAG.findall(text)}
    rest = _FLAG.sub("", text).strip(" ;,")
    if rest.startswith("layer split"):
        raise UnusableRow("an uneven split of layers over pipeline stages is not modelled")
    unknown = [name for name in flags if name not in _KNOWN_FLAGS] + ([rest] if rest else [])
    if unknown:
        assumed.append(f"other flags not understood and left out: {shorten(', '.join(unknown))}")
    if not flags.get("decode_context_parallel_size", "1").isdecimal():
        raise UnusableRow("decode_context_parallel_size is not a whole number")
    return flags


def _draft(row: Row, assumed: list[str]) -> Draft | None:
    text = row.text("spec_decode").lower()
    if text in ("", "none", "false", "off"):
        return None
    tokens = re.search(r"\bk\s*=\s*([0-9]{1,3})\b|num_speculative_tokens\s*[=:]\s*([0-9]{1,3})\b", text)
    if tokens is None:
        assumed.append("one drafted token a step: the row names the method only")
    return Draft(
        method=re.split(r"[ ,;(]", text, maxsplit=1)[0],
        tokens=max(1, int(tokens.group(1) or tokens.group(2))) if tokens else 1,
    )


def _options(row: Row, flags: Mapping[str, str], assumed: list[str]) -> ServeOptions:
    fraction = row.number("gpu_memory_utilization", low=0.001, high=1.0)
    context = row.whole("max_model_len", low=1, high=10**9)
    for name, value in (("gpu_memory_utilization", fraction), ("max_model_len", context)):
        if value is None:
            assumed.append(f"{name}: the engine's default")
    kv_dtype = row.text("kv_cache_dtype").lower()
    return ServeOptions(
        memory_fraction=fraction,
        context=context,
        max_seqs=row.whole("max_num_seqs", low=1, high=10**6),
        max_batched_tokens=row.whole("max_num_batched_tokens", low=1, high=10**8),
        block_size=row.whole("block_size", low=1, high=2**20),
        dtype=row.text("dtype").lower() or None,
        kv_dtype=None if kv_dtype in ("", "auto") else kv_dtype,
        eager=bool(row.flag("enforce_eager")),
        prefix_caching=row.flag("prefix_caching"),
        mamba_cache_mode=flags.get("mamba_cache_mode"),
    )
