"""One row of a serving-memory table read as a question: which model, on which card, laid out and started how.

Columns win over names: the quantisation column decides where the model's files do not say, the row's own memory total
beats the catalogue. Whatever had to be filled in is listed; what cannot be read makes the row unusable with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from trilemma import engines
from trilemma.engines.coefficients import ChangedRows
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.measured.dating import date_of_vllm_issue, parse_date
from trilemma.measured.serving.memory.row_flags import other_flags
from trilemma.measured.serving.memory.weights import is_unstated, model_of_row
from trilemma.measured.tables import Row, UnusableRow
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import GIB
from trilemma.versions import DEFAULT_ENGINE


@dataclass(frozen=True, kw_only=True, slots=True)
class StartQuestion:
    """What is asked of the engine. Without ``version`` the release of ``date`` answers, without both the newest, widened.

    Rows ``changed`` take the place of coefficients shipped: those of a refit.
    """

    model: Model
    accelerator: Accelerator
    layout: Layout
    options: ServeOptions
    draft: Draft | None
    version: str | None
    date: str | None
    capacity_bytes: float | None
    quantization: str
    utilisation_stated: bool
    context_stated: bool
    assumed: tuple[str, ...]
    engine: str = DEFAULT_ENGINE
    changed: ChangedRows | None = field(default=None, compare=False)

    @property
    def weights_unstated(self) -> bool:
        """Whether the row does not say how many bits a weight has, so that weights cannot be predicted."""
        return is_unstated(self.quantization)


def read_question(row: Row, models_dir: str | Path | None) -> StartQuestion:
    """The question of one row. Raises `UnusableRow` with the reason where the row lacks what a prediction needs."""
    assumed: list[str] = []
    engine = _engine(row)
    layout = _layout(row, assumed, engine)
    model, quantization = model_of_row(row, models_dir, assumed)
    accelerator, capacity_bytes = _card(row, assumed)
    version, date = _version(row, assumed, engine)
    flags, extra = other_flags(row, engine, assumed)
    draft = _draft(row, model, assumed)
    # where a tower lies in a file of its own, the row's command names it or none was loaded
    beside = engines.traits_of(engine).weights == "gguf" and "mmproj" not in extra
    options = replace(_options(row, flags, assumed), extra=extra, text_only=beside)
    dcp = flags.get("decode_context_parallel_size", 1)
    try:
        layout = Layout(tp=layout.tp, pp=layout.pp, dp=layout.dp, ep=layout.ep, dcp=int(dcp))
    except (InputError, ValueError) as error:
        raise UnusableRow(f"layout: {error}") from None
    switch = engines.traits_of(engine).attends_alone_by
    if switch is not None and int(layout.dp) > 1:
        layout, options = _attention_replicas(row, layout, options, model, switch=switch, flags=flags, assumed=assumed)
        if engines.traits_of(engine).limit_of_all_replicas and options.max_seqs is not None:
            options = replace(options, max_seqs=max(int(options.max_seqs) // int(layout.dp), 1))
    return StartQuestion(
        model=model,
        accelerator=accelerator,
        layout=layout,
        options=options,
        draft=draft,
        version=version,
        date=date,
        capacity_bytes=capacity_bytes,
        quantization=quantization,
        utilisation_stated=options.memory_fraction is not None,
        context_stated=options.context is not None,
        assumed=tuple(assumed),
        engine=engine,
    )


def _engine(row: Row) -> str:
    """The engine's registered name."""
    engine = row.text("engine").lower()
    if not engine:
        raise UnusableRow("names no engine")
    name = engines.canonical(engine)
    if name not in engines.readable():
        fork = any(known in engine for known in engines.readable())
        why = "a fork with rules of its own" if fork else "its memory rules are not modelled yet"
        raise UnusableRow(f"engine {shorten(row.text('engine'))!r}: {why}")
    return name


def _attention_replicas(
    row: Row, layout: Layout, options: ServeOptions, model: Model, *, switch: str, flags: Mapping[str, str], assumed: list[str]
) -> tuple[Layout, ServeOptions]:  # fmt: skip
    """Attention replicas that share experts take their ranks from the tensor-parallel degree that a row states."""
    if "enable_dp_attention" not in flags:
        if not any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers):
            return layout, options
        assumed.append("replicas share the experts (attention data parallelism): the row states dp for a mixture")
    tp, dp = int(layout.tp), int(layout.dp)
    if row.text("tp") and tp % dp:
        raise UnusableRow(f"dp {dp} attention replicas do not divide tp {tp}")
    told = replace(options, extra={**options.extra, switch: True})
    return Layout(tp=tp // dp if row.text("tp") else tp, dp=dp, pp=layout.pp, ep=layout.ep), told


def _layout(row: Row, assumed: list[str], engine: str = DEFAULT_ENGINE) -> Layout:
    tp, pp, dp = (row.whole(column, low=1, high=4096) for column in ("tp", "pp", "dp"))
    gpus = row.whole("gpus_used", low=1, high=65536)
    if (tp, pp, dp) == (None, None, None):
        if engines.traits_of(engine).in_turn and gpus is not None:
            assumed.append(f"layers in turn over {gpus} GPUs: the engine's default")
            return Layout(pp=gpus)
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


def _card(row: Row, assumed: list[str]) -> tuple[Accelerator, float | None]:
    name = row.text("gpu")
    total_gib = row.number("gpu_total_gib", low=0.5, high=4096)
    if not name:
        raise UnusableRow("names no GPU")
    found = _found_card(name[:300], total_gib)
    if isinstance(found, str):
        raise UnusableRow(found)
    accelerator, warnings = found
    assumed.extend(warning.message for warning in warnings)
    if total_gib is None:
        assumed.append("memory of the card from the catalogue")
    return accelerator, None if total_gib is None else total_gib * GIB


@lru_cache(maxsize=512)
def _found_card(name: str, total_gib: float | None) -> tuple[Accelerator, tuple[PlanWarning, ...]] | str:
    from trilemma.hardware.catalogue import find_measured

    try:
        return find_measured(name, total_gib)
    except InputError as error:
        return error.flags


def _version(row: Row, assumed: list[str], engine: str = DEFAULT_ENGINE) -> tuple[str | None, str | None]:
    """(version, date): the release that the row names, else the day it was taken, else that of the issue it cites."""
    from trilemma.engines.vllm.facts import for_version

    text = row.text("engine_version")[:200]
    if not engines.traits_of(engine).dated_by_issues:
        taken = parse_date(row.text("date"))
        return _other_version(text, engine, assumed), None if taken is None else taken.isoformat()
    if text:
        try:
            facts = for_version(text)
        except InputError:
            assumed.append(f"engine_version {shorten(text)!r} is no version")
        else:
            if not facts.known:
                assumed.append(f"facts of vLLM {facts.version} for {shorten(text)}")
            return text, None
    day = parse_date(row.text("date"))
    if day is None:
        cited = date_of_vllm_issue(row.text("source_ref")) or date_of_vllm_issue(row.text("source"))
        if cited is None:
            return None, None
        day = cited[1]
        assumed.append(f"taken about {day}, when issue {cited[0]} was opened")
    return None, day.isoformat()


def _other_version(text: str, engine: str, assumed: list[str]) -> str | None:
    from trilemma.versions import parse_version

    try:
        return text if text and parse_version(text, engine=engine) else None
    except InputError:
        assumed.append(f"engine_version {shorten(text)!r} is no version")
        return None


def _draft(row: Row, model: Model, assumed: list[str]) -> Draft | None:
    text = row.text("spec_decode").lower()
    if not text and model.mtp_layers:
        assumed.append("no speculative decoding: the row does not say")
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
    return ServeOptions(
        memory_fraction=fraction,
        context=context,
        max_seqs=row.whole("max_num_seqs", low=1, high=10**6),
        max_batched_tokens=row.whole("max_num_batched_tokens", low=1, high=10**8),
        block_size=row.whole("block_size", low=1, high=2**20),
        dtype=row.text("dtype").lower() or None,
        kv_dtype=None if (kv := row.text("kv_cache_dtype").lower()) in ("", "auto") else kv,
        eager=bool(row.flag("enforce_eager")),
        prefix_caching=row.flag("prefix_caching"),
        mamba_cache_mode=flags.get("mamba_cache_mode"),
    )
