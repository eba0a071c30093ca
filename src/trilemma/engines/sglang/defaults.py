"""The options in force: what the user said, what SGLang fills in for this version, card and layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.draft import Drafting
from trilemma.engines.launch import share_of_card
from trilemma.engines.loading import computing_format
from trilemma.engines.rank_memory import rungs
from trilemma.engines.sglang.facts import SglangFacts
from trilemma.errors import InputError, PlanWarning, UnknownName
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import Model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import MIB

_AFTER_CAPTURE = "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"


@dataclass(frozen=True, kw_only=True, slots=True)
class SglangInForce:
    """Options with SGLang's defaults filled in; arrays (plans,) where they go by layout.

    ``chunk`` prompt tokens go through at once (−1: prompts are not cut); ``graph_batch`` is the largest batch captured.
    """

    fraction: Any
    context: int
    context_stated: bool
    chunk: int
    graph_batch: Any
    prefill_graphs: int
    latent: bool
    kv: Format
    dtype: Format
    page: int
    sized_after_capture: bool
    warnings: tuple[PlanWarning, ...] = ()


def in_force(
    drafting: Drafting, options: ServeOptions, facts: SglangFacts, *, accelerator: Accelerator, driver_bytes: float,
    layout: Layout, draft: Draft | None,
) -> SglangInForce:  # fmt: skip
    """Fill in what ``options`` leave open. Raises `InputError` for values that the engine refuses."""
    model, warnings = drafting.model, []
    context = options.context or model.max_positions
    if context is None:
        context = int(facts.coefficients["unstated"]["context"])
        warnings.append(
            PlanWarning(code="assumed-context", message=f"{model.name} states no length; {context} assumed")
        )
    tp, dp = np.asarray(layout.tp), np.asarray(layout.dp)
    attention_dp = np.where(dp_attention(layout, options), dp, 1)
    ranks = tp * attention_dp
    chunk, graph_batch = _by_card(facts, driver_bytes / MIB, ranks)
    if options.max_batched_tokens is not None:
        chunk = int(np.max(options.max_batched_tokens))
    if options.cuda_graph_sizes:
        graph_batch = np.full_like(ranks, max(options.cuda_graph_sizes))
    names = ("cuda-graph-max-bs", "cuda-graph-max-bs-decode")
    asked = next((options.extra[name] for name in names if options.extra.get(name)), None)
    if asked is not None:
        graph_batch = np.full_like(ranks, int(asked))
    if options.eager or options.cuda_graph_sizes == ():
        graph_batch = np.zeros_like(ranks)
    latent = any(mixer.is_latent for mixer in model.mixers)
    prefill_graphs = 0 if options.eager else _prefill_graphs(model, facts, options, chunk)
    after = _sized_after_capture(options, facts, latent)
    if options.memory_fraction is not None:
        fraction: Any = np.full(np.shape(ranks), share_of_card(options.memory_fraction, shown="--mem-fraction-static"))
    elif after:
        kept = facts.sized_after_capture_mib + ranks * np.asarray(layout.pp) / 8 * 1024
        fraction = np.round((driver_bytes / MIB - kept) / (driver_bytes / MIB), 3)
    else:
        fraction = _default_fraction(
            facts, driver_bytes / MIB, ranks=ranks, pp=np.asarray(layout.pp), dp=attention_dp, chunk=chunk,
            graph_batch=graph_batch, prefill_graphs=prefill_graphs, latent=latent, draft=draft,
        )  # fmt: skip
    if options.memory_fraction is None and model.multimodal and not options.text_only:
        fraction = fraction * facts.encoder_share * _encoder_factor(model) if facts.encoder_share < 1 else fraction
    sparse = any(mixer.is_latent and mixer.is_sparse for mixer in model.mixers)
    return SglangInForce(
        fraction=fraction,
        context=context,
        context_stated=options.context is not None,
        chunk=chunk,
        graph_batch=graph_batch,
        prefill_graphs=prefill_graphs,
        latent=latent,
        kv=_kv(model, options, facts, accelerator, sparse),
        dtype=computing_format(model, options),
        page=options.block_size or _page(model, facts, sparse),
        sized_after_capture=after,
        warnings=tuple(warnings),
    )


def dp_attention(layout: Layout, options: ServeOptions) -> Any:
    """Whether replicas share experts (``--enable-dp-attention``) rather than being whole engines of their own."""
    spread = (np.asarray(layout.ep) > 1) & (np.asarray(layout.dp) > 1)
    return spread | bool(options.extra.get("enable-dp-attention"))


def _by_card(facts: SglangFacts, card_mib: float, ranks: Any) -> tuple[int, Any]:
    rule = facts.card_classes
    row = next(row for row in rule["rows"] if not row[0] or card_mib < row[0])
    return int(row[1]), np.where(ranks >= rule["wide_tp"], row[3], row[2])


def _page(model: Model, facts: SglangFacts, sparse: bool) -> int:
    if _is_compressed(model):
        return int(facts.compressed_pool["page"])
    return facts.sparse_page_size if sparse else facts.page_size


def _is_compressed(model: Model) -> bool:
    return any(mixer.is_compressed for mixer in model.mixers)


def _prefill_graphs(model: Model, facts: SglangFacts, options: ServeOptions, chunk: int) -> int:
    """How many prompt lengths are captured: about 4, 8, … 32, then ever wider steps up to the chunk."""
    if _is_compressed(model) and not facts.compressed_pool["prefill_graphs"]:
        return 0
    asked = facts.reserve.get("prefill_graphs")
    if asked != "default" and not options.extra.get("enable-piecewise-cuda-graph"):
        return 0
    off = ("disable-piecewise-cuda-graph", "disable-prefill-cuda-graph")
    is_off = options.extra.get("cuda-graph-backend-prefill") == "disabled"
    if is_off or any(options.extra.get(name) for name in off) or chunk <= 0:
        return 0
    return int(rungs(facts.coefficients["prompt_graphs"]["ladder"], chunk))


def prompt_graph_bytes(facts: SglangFacts, graphs: int, *, latent: bool) -> float:
    """What ``graphs`` of prompts are given by the engine's own reserve: a sum for latent attention, else so much for each."""
    data = facts.coefficients["prompt_graphs"]
    return float(min(graphs, 1) * data["latent_mib"] if latent else graphs * data["each_mib"]) * MIB


def _sized_after_capture(options: ServeOptions, facts: SglangFacts, latent: bool) -> bool:
    """Asked for by a variable of the environment; latent attention and runs without graphs are sized before capture."""
    asked = str(options.extra.get(_AFTER_CAPTURE, "")).lower() in ("1", "true", "yes")
    return asked and facts.sized_after_capture_mib > 0 and not latent and not options.eager


def _default_fraction(
    facts: SglangFacts, card_mib: float, *, ranks: Any, pp: Any, dp: Any, chunk: int, graph_batch: Any, prefill_graphs: int,
    latent: bool, draft: Draft | None,
) -> Any:  # fmt: skip
    """The share that ``--mem-fraction-static`` gets when it is not given (server_args.py, _handle_gpu_memory_settings)."""
    rule = facts.reserve
    drafts = draft is not None and draft.method not in ("ngram", "suffix")
    if rule["rule"] == "by_tp":
        shares = np.select([ranks >= least for least, _ in rule["shares"]], [share for _, share in rule["shares"]])
        if card_mib > rule.get("above_mib", np.inf):
            shares = np.full(np.shape(ranks), (card_mib - rule["kept_mib"]) / card_mib)
        return shares
    if rule["rule"] == "by_card":
        row = next(row for row in rule["rows"] if not row[0] or card_mib < row[0])
        kept: Any = row[1] + row[2] * ranks * pp
        kept = kept + (rule["draft_mib"] if draft is not None else 0) + np.where(dp > 1, rule["dp_attention_mib"], 0)
        return np.round((card_mib - kept) / card_mib, 3)
    kept = (
        rule["base_mib"]
        + max(chunk, facts.coefficients["chunk"]["least_tokens"]) * rule["per_token"]
        + graph_batch * rule["per_graph"]
    )
    kept = kept + ranks * pp / 8 * 1024
    large = np.where(graph_batch > rule["dp_large_above"], rule["dp_large_per_graph"], 0.0)
    kept = kept + np.where(dp > 1, graph_batch * dp * (rule["dp_per_graph"] + large), 0.0)
    kept = kept + prompt_graph_bytes(facts, prefill_graphs, latent=latent) / MIB
    if card_mib > rule["floor_above_mib"]:
        kept = np.maximum(kept, rule["floor_mib"])
    if drafts and draft is not None:
        kept = kept + (rule["standalone_mib"] if draft.method in ("draft", "standalone") else rule["draft_mib"])
    return np.round((card_mib - kept) / card_mib, 3)


def _encoder_factor(model: Model) -> float:
    """``1 − 0.1 · (size / size of ViT-L/14 − 1)`` between 0.8 and 1.05, size = layers · hidden² of the tower."""
    layers, hidden = model.vision.get("layers", 24), model.vision.get("hidden", 1024)
    ratio = layers * hidden**2 / (24 * 1024**2)
    return float(max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0))))


def _kv(model: Model, options: ServeOptions, facts: SglangFacts, accelerator: Accelerator, sparse: bool) -> Format:
    """``auto`` follows the checkpoint's wish, FP8 for sparse attention from Blackwell on and for compressed attention,
    else the model's format."""
    asked = (options.kv_dtype or "auto").lower()
    if asked in ("bf16", "bfloat16", "fp16", "float16"):
        return catalogue.get(asked)
    if asked != "auto":
        name = {"fp4_e2m1": "nvfp4", "fp8": "fp8_e4m3"}.get(asked, asked)
        try:
            return catalogue.get(name)
        except UnknownName:
            raise InputError(
                f"--kv-cache-dtype {asked[:60]!r} is not a cache type of SGLang; use auto, fp8_e5m2, fp8_e4m3, bf16 or fp4_e2m1"
            ) from None
    if model.quantization is not None and model.quantization.kv_format:
        return catalogue.get(model.quantization.kv_format)
    if sparse and (accelerator.compute_capability or 0.0) >= facts.sparse_16_bit_below:
        return catalogue.get("fp8_e4m3")
    if _is_compressed(model):
        return catalogue.get(facts.compressed_pool["kv"])
    return computing_format(model, options)
