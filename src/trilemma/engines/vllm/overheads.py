"""vLLM's profiling run: the activation peak that it measures, in two lines, and which batches it captures.

Coefficients: ``data/coefficients/serving_memory/vllm.toml``, by version and never by model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.engines.rank_memory import Widths, expert_bytes, forward_bytes, rungs
from trilemma.engines.vllm.facts import VllmFacts
from trilemma.formats.formats import Format
from trilemma.models.architecture import Model
from trilemma.models.attention import Mixer
from trilemma.quantities import GIB, MIB, Numbers, ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The activation peak of the profiling run in two lines that sum to it: the sampler's part and all else."""

    logits: Any
    activations: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Profiled:
    """Images and videos of the profiling run: ``patches`` in the largest batch of the tower, tokens that they stand for beyond
    one image, tokens of the prompt that the language model sees of them (0: it is profiled apart), and tokens whose rows are
    kept to the end."""

    patches: int
    further_tokens: int = 0
    prompt_tokens: int = 0
    kept_tokens: int = 0

    @classmethod
    def of(
        cls,
        model: Model,
        facts: VllmFacts,
        *,
        context: int,
        limits: Mapping[str, int] | None,
        most_pixels: int | None = None,
    ) -> Profiled:
        """What ``limits`` allow (one image and one video unless stated) in a ``context``, by version and family; images and
        frames of ``most_pixels`` where the command states that (``--mm-processor-kwargs``)."""
        data, tower = facts.coefficients["encoder"], model.vision
        if tower.get("image") and tower.get("patch"):
            return cls(patches=(tower["image"] // tower["patch"]) ** 2 * tower.get("tiles", 1))
        row = next(
            (row for row in data["patches"] if model.family.startswith(row["family"])), {"patches": data["otherwise"]}
        )
        image, tokens, pairs = row["patches"], row.get("tokens", 0), row.get("pairs", 0)
        if most_pixels is not None and tower.get("patch") and most_pixels // tower["patch"] ** 2 < image:
            tokens = tokens * (most_pixels // tower["patch"] ** 2) // image
            image = most_pixels // tower["patch"] ** 2
        allowed = {"image": 1, "video": 1, **(limits or {})}
        if not tokens:
            return cls(patches=image, kept_tokens=row.get("kept", 0) if allowed["video"] else 0)
        images, videos = allowed["image"], allowed["video"]
        # An odd number of frames, as many as fit, is made even: a pair more than whole pairs fit.
        held = min(max(context // tokens - min(images, 1), 0) + 1, pairs) if videos else 0
        if not facts.profiles_whole_prompts:
            units = max(min(images, 1), held)
            return cls(patches=image * units, further_tokens=tokens * max(units - 1, 0))
        units, told = max(images, held * videos), images + held * videos
        return cls(patches=image * units, further_tokens=tokens * max(told - 1, 0), prompt_tokens=tokens * told)


def activation_peak(
    model: Model, *, widths: Widths, facts: VllmFacts, tp: Numbers, ep: Numbers, last: Any, max_seqs: Numbers,
    tokens: Numbers, dtype_bytes: float, context: int, text_only: bool, compute_capability: float | None,
    limits: Mapping[str, int] | None = None, most_pixels: int | None = None, samples: bool = True,
) -> Peak:  # fmt: skip
    """``fixed + experts + max(sampler, forward + attention + encoder)`` bytes on one rank; scalars or arrays (plans,).

    Sampler: ``c · sequences · vocabulary`` on the ``last`` stage, whole on every rank (logits are gathered); a model that pools
    has none (``samples``; vllm/v1/worker/gpu_model_runner.py, _dummy_pooler_run). Forward:
    copies of ``tokens`` rows of the hidden state and of the feed-forward's columns, the latter divided by ``tp``.
    Experts: ``tokens · top_k`` rows of the wider matrix, kept for the life of the engine and shared with the workspace of
    sparse attention, which goes by ``context``. Attention: cached latents unpacked into heads, or the indexer's logits.
    Encoder: images and videos of the largest size, as many as ``limits`` allow (vllm/v1/worker/gpu_model_runner.py,
    profile_run); engines that profile whole prompts pass as many tokens through the language model too.
    """
    memory = facts.coefficients
    forward = memory["forward"]
    seen = None
    if model.multimodal and not text_only:
        seen = Profiled.of(model, facts, context=context, limits=limits, most_pixels=most_pixels)
    row = np.asarray(tokens) * dtype_bytes
    logits = np.asarray(max_seqs if samples else 0) * float(widths.vocab) * memory["sampler"]["bytes_per_logit"]
    sampler = np.asarray(last) * (logits + forward["logit_hidden_copies"] * (row * widths.hidden))
    encoder = 0.0 if seen is None else _encoder_bytes(model, facts, tp, seen)
    latents = [mixer for mixer in model.mixers if mixer.is_latent]
    sparse = max((mixer.latent_width for mixer in latents if mixer.is_sparse), default=0)
    if sparse:
        attention = _indexer_bytes(facts, tokens=tokens, context=context, compute_capability=compute_capability)
    else:
        attention = _latent_bytes(latents, facts, tp=tp, context=context, dtype_bytes=dtype_bytes)
    gathered = float(memory["sparse"]["context_copies"]) * context * sparse * dtype_bytes
    workspace = np.maximum(expert_bytes(widths, memory, row=row, tp=tp, ep=ep), gathered)
    prompt = row if seen is None else np.maximum(row, seen.prompt_tokens * dtype_bytes)
    layer = forward_bytes(widths, memory, row=prompt, tp=tp)
    kept = 0.0 if seen is None else _handed_over(model, facts, seen.kept_tokens)
    peak = forward["fixed_gib"] * GIB + workspace + kept + np.maximum(sampler, layer + encoder + attention)
    shown = np.minimum(np.asarray(last) * logits, peak)
    return Peak(logits=shown, activations=peak - shown)


def _latent_bytes(latents: Sequence[Mixer], facts: VllmFacts, *, tp: Numbers, context: int, dtype_bytes: float) -> Any:
    """Dense latent attention: up to ``most_tokens`` cached latents unpacked into the K and V of a rank's heads."""
    data = facts.coefficients["latent"]
    heads = max((mixer.heads for mixer in latents), default=0)
    width = max((mixer.unpacked_width for mixer in latents), default=0)
    tokens = min(data["contexts"] * context, data["most_tokens"])
    return tokens * ceil_div(heads, np.asarray(tp)) * width * dtype_bytes


def _indexer_bytes(facts: VllmFacts, *, tokens: Numbers, context: int, compute_capability: float | None) -> Any:
    """Logits of the sparse indexer, in chunks of fixed size, or ``tokens · context`` in FP32 where kernels for chunks lack."""
    data = facts.coefficients["sparse"]
    if compute_capability in data["whole_logits_on"]:
        return np.asarray(tokens) * float(context) * data["logit_bytes"]
    return np.full(np.shape(tokens), data["indexer_gib"] * GIB)


def _encoder_bytes(model: Model, facts: VllmFacts, tp: Numbers, seen: Profiled) -> Any:
    """Bytes in and after the tower: ``(copies + split / tp) · patches · hidden`` and, for what is longer than one image,
    ``copies · tokens · levels · width`` of what it hands to the language model; all in 16 bits.
    """
    data, tower = facts.coefficients["encoder"], model.vision
    copies = data["hidden_copies"] + data["split_copies"] / np.asarray(tp)
    inside = copies * seen.patches * tower.get("hidden", 0)
    return inside * data["bytes"] + data["output_copies"] * _handed_over(model, facts, seen.further_tokens)


def _handed_over(model: Model, facts: VllmFacts, tokens: int) -> float:
    """Bytes of ``tokens`` as the tower hands them to the language model, at every level that it reads."""
    tower = model.vision
    return float(tokens * tower.get("levels", 1) * tower.get("out", 0) * facts.coefficients["encoder"]["bytes"])


def captured(
    facts: VllmFacts, *, max_seqs: Numbers, tokens: Numbers, draft_tokens: int, sizes: tuple[int, ...] | None, eager: bool,
    pp: Numbers = 1, piecewise: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """(graphs, largest batch): every size once in each mode, ``sizes`` or those of the ladder up to
    ``min(most, sequences · (1 + draft) · per_sequence, tokens)`` (vllm/config/vllm.py, _set_cudagraph_sizes); where each of
    ``pp`` stages has a scheduler of its own, again for each of them. ``piecewise``: one mode alone.
    """
    rule = facts.graph_sizes
    times = (1 if piecewise else rule.kinds) * np.asarray(pp if facts.captures_for_every_stage else 1)
    if eager:
        return np.zeros(()), np.zeros(())
    if sizes is not None:
        return np.asarray(float(len(sizes))) * times, np.asarray(float(max(sizes, default=0)))
    wanted = np.asarray(max_seqs) * (1 + draft_tokens) * rule.per_sequence
    largest = np.minimum(np.minimum(wanted, rule.most), tokens)
    return rungs(facts.coefficients["graphs"]["ladder"], largest) * times, largest


def flashinfer_workspace(
    facts: VllmFacts, *, kv: Format, compute_capability: float | None, backend: object = None
) -> float:
    """Bytes that FlashInfer's attention keeps beside graphs of passes that check drafts, 0 for other kernels.

    ``backend`` is what the command names; without a name the rule of ``facts`` tells by the card and the format of the cache.
    """
    rule = facts.flashinfer
    if not rule or compute_capability is None:
        return 0.0
    if backend:
        attends = "flashinfer" in str(backend).lower()
    else:
        generation = int(compute_capability)
        lacks_other = rule["least"] <= compute_capability < rule["below"]
        narrow = kv.bits <= 8 and kv.granularity != "channel" and generation != rule["reads_8_bits"]
        attends = generation == rule["on"] or lacks_other or narrow
    return rule["workspace_mib"] * MIB if attends else 0.0
