"""Figures of plans and kernels to six digits: what of a change on one line the rounded screens would not show.

Training: memory by line and stage, seconds by line, of one change to a plan at a time. Serving: an engine's start-up line by
line, of one change to its options at a time. Kernels: their formulas with numbers that stand here, fitted to nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from trilemma import engines
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import training_memory
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, Layout, Offload, Recompute, ServeOptions, TrainingPlan, optimizer, recipe
from trilemma.plans.companions import Companion
from trilemma.timing import kernels
from trilemma.timing.kernels.formulas import PARAMETERS
from trilemma.timing.training_step import training_step
from trilemma.workloads import TrainingWorkload

LOAD = TrainingWorkload(seq=4096, global_batch=64)
#: Changes to a plan, one at a time.
TRAINED: tuple[dict[str, Any], ...] = (
    {},
    *({"zero": zero} for zero in (0, 2, 3)),
    {"layout": Layout(dp=8), "zero": 3, "reshard": False},
    {"zero": 3, "flat_parameters": True},
    {"layout": Layout(dp=16), "zero": 3, "shard_group": 8},
    {"layout": Layout(tp=8)},
    {"layout": Layout(tp=4, dp=2), "sp": False},
    {"layout": Layout(cp=4, dp=2)},
    {"layout": Layout(cp=2, tp=2, dp=2), "cp_exchange": "all_to_all"},
    {"layout": Layout(tp=2, pp=2, dp=4)},
    *({"layout": Layout(pp=4, dp=4), "schedule": one} for one in ("gpipe", "1f1b", "zb-h1", "zb-h2", "dualpipe")),
    *(
        {"layout": Layout(pp=4, dp=4, vpp=2), "schedule": one}
        for one in ("interleaved", "zbv", "v-half", "v-min", "dualpipev")
    ),
    {"layout": Layout(dp=8, ep=8)},
    {"layout": Layout(dp=16, ep=8, tp=2), "expert_tp": 2},
    {"layout": Layout(dp=16, ep=16), "dispatcher": "deepep"},
    {"layout": Layout(dp=16, ep=16), "dispatcher": "hybridep", "imbalance": 1.5},
    *(
        {"recompute": one}
        for one in (
            Recompute(mode="full"),
            Recompute(mode="full", layers=5),
            Recompute(mode="op"),
            Recompute(mode="selective"),
            Recompute(mode="selective", parts=("layernorm", "mlp")),
            Recompute(mode="selective", parts=("moe_act", "shared_experts", "mla_up_proj")),
            Recompute(mode="selective", parts=("moe",)),
        )
    ),
    *(
        {"recipe": recipe(one)}
        for one in (
            "bf16-bf16-grads",
            "amp",
            "fsdp",
            "pure-bf16",
            "fp32",
            "zero-bf16",
            "fp8",
            "fp8-deepseek",
            "fp8-primary",
            "fp8-block",
            "mxfp8",
            "nvfp4",
            "fsdp-fp8",
        )
    ),
    *(
        {"optimizer": optimizer(one)}
        for one in ("adamw-8bit", "adamw-bf16-moments", "adafactor", "muon", "lion", "sgd")
    ),
    *(
        {"implementation": one, "zero": 3}
        for one in ("torchtitan", "deepspeed", "accelerate", "transformers", "axolotl")
    ),
    *({"attention": one} for one in ("eager", "sdpa")),
    *({"loss": one} for one in ("chunked", "fused")),
    {"micro_batch": 2},
    {"micro_batch": 4, "compiled": True, "implementation": "torchtitan"},
    {"mlp_tiles": 4},
    *({"offload": one} for one in (Offload(activations=0.5), Offload(optimizer=0.5), Offload(weights=1.0))),
    {"optimizer_in_backward": True},
    {"mtp": True},
    {"cuda_graphs": True},
    {"hidden_dropout": True, "attention_dropout": True},
    {"overlap_data": False, "overlap_tensor": False, "layout": Layout(tp=2, dp=8)},
    {"overlap_tensor": True, "layout": Layout(tp=2, dp=8)},
    {
        "companions": (
            Companion(name="reference", role="frozen", sharded=True),
            Companion(name="critic", role="trained", parameters=1e9),
        )
    },
    {"companions": (Companion(name="engine", role="engine", share=0.3, asleep=True),)},
)
#: Changes to the load.
LOADS: tuple[dict[str, Any], ...] = (
    {"method": "lora", "rank": 16},
    {"method": "qlora", "rank": 64},
    {"method": "dora", "rank": 8, "targets": ("attention.q", "attention.v")},
    {"method": "lora", "rank": 16, "base_format": "int8"},
    {"seq": 32768, "global_batch": 16},
    {"filling": 0.7},
)
MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-12b", "nemotron-h-56b")


def digits(value: Any) -> str:
    """Numbers to six digits, arrays and values of several fields in turn."""
    if isinstance(value, (bool, str, type(None))):
        return str(value)
    if is_dataclass(value):
        return " ".join(digits(getattr(value, one.name)) for one in fields(value))
    if isinstance(value, dict):
        return " ".join(f"{name} {digits(one)}" for name, one in value.items())
    if isinstance(value, (tuple, list)):
        return " ".join(map(digits, value))
    return " ".join(f"{number:.6g}" for number in np.asarray(value, dtype=float).ravel())


def _line(name: Any, figures: Callable[[], Any]) -> str:
    try:
        return f"{name}: {digits(figures())}"
    except InputError as error:
        return f"{name}: refused {' '.join(str(error).split())[:80]}"


def training(name: str) -> str:
    """Memory and time of training ``name``."""
    model, plain = load_model(name), TrainingPlan(layout=Layout(dp=8), recipe=recipe("bf16"))
    lines = []
    for change, load in [
        *((one, {}) for one in TRAINED),
        *(({}, one) for one in LOADS),
        *(({"zero": 3}, one) for one in LOADS),
    ]:
        plan, work = replace(plain, **change), replace(LOAD, **load)
        for card, per_node in (("h100-sxm", 8), ("rtx-4090", 4)) if not change else (("h100-sxm", 8),):
            cluster = Cluster.of(find(card), max(int(plan.layout.gpus), 8), gpus_per_node=per_node)
            shown = f"{card} {_words(change)} {load or ''}"
            lines.append(
                _line(f"{shown} bytes", lambda c=cluster, p=plan, w=work: _bytes(training_memory(model, c, p, w)))
            )
            lines.append(
                _line(f"{shown} seconds", lambda c=cluster, p=plan, w=work: _seconds(training_step(model, c, p, w)))
            )
    return "\n".join(lines)


def _words(change: dict[str, Any]) -> str:
    return ", ".join(f"{name}={getattr(value, 'name', value)}" for name, value in change.items())


def _bytes(found: Any) -> Any:
    kept = {line.name: line.bytes for line in found.ledger}
    others = (
        "allocated_bytes",
        "reserved_bytes",
        "outside_bytes",
        "spread",
        "in_flight",
        "moved_bytes",
        "host_bytes",
        "uncounted_bytes",
        "resume_peak_bytes",
    )
    return {
        **kept,
        **{name: getattr(found, name) for name in others},
        "ranks": [sum(line.bytes for line in one.ledger) for one in found.ranks],
    }


def _seconds(found: Any) -> Any:
    shown = {name: value for name, value in found.lines.items() if np.any(np.asarray(value) != 0)}
    return {
        **shown,
        "hidden": found.hidden,
        "resources": found.resources,
        "passes": found.passes,
        "mfu": found.mfu,
        "hfu": found.hfu,
    }


SERVED: tuple[dict[str, Any], ...] = (
    {},
    {"memory_fraction": 0.8},
    {"context": 8192},
    {"max_seqs": 16},
    {"max_seqs": 512},
    {"max_batched_tokens": 16384},
    {"block_size": 32},
    {"dtype": "float16"},
    {"kv_dtype": "fp8"},
    {"kv_dtype": "fp8_e5m2"},
    {"eager": True},
    {"prefix_caching": False},
    {"chunked_prefill": False},
    {"cuda_graph_sizes": (1, 2, 4, 8)},
    {"text_only": True},
    {"cpu_offload_bytes": 4 * 2**30},
    {"kv_cache_bytes": 8 * 2**30},
    {"quantization": "fp8"},
    {"extra": {"cpu-offloading": True}},
)
ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers-serve")
LAYOUTS = (Layout(tp=1), Layout(tp=4), Layout(tp=2, pp=2), Layout(tp=2, dp=2, ep=4), Layout(tp=3))
SERVED_MODELS = (
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "gemma-3-12b",
    "gpt-oss-20b",
    "qwen3-next-80b-a3b",
)


def serving(engine: str) -> str:
    """Start-up of an engine: options on one card, layouts, versions, drafts, on a large and a small card."""
    one = engines.get(engine)
    lines = []

    def add(shown: str, model: str, card: str, layout: Layout, options: ServeOptions, **more: Any) -> None:
        def figures() -> Any:
            start = one.start_up(
                model=load_model(model), accelerator=find(card), layout=layout, options=options, **more
            )
            stage, chance = one.likeliest_stage(start)
            told = {
                line.name: (line.bytes, line.low, line.high) if hasattr(line, "low") else line.bytes
                for line in start.ledger
            }
            rest = {
                part.name: getattr(start, part.name) for part in fields(start) if _is_number(getattr(start, part.name))
            }
            feasible = one.feasible_fraction(start)
            return {
                **told,
                **rest,
                "pool": start.pool,
                "stage": stage,
                "chance": chance,
                "feasible": feasible,
                "warnings": [c.code for c in start.warnings],
            }

        lines.append(_line(f"{model} {card} {shown}", figures))

    for model, card in itertools.product(SERVED_MODELS, ("h100-sxm", "rtx-4090")):
        for change in SERVED if model in SERVED_MODELS[:3] else SERVED[:6]:
            add(str(change), model, card, Layout(), ServeOptions(**{"context": 4096, **change}))
        for layout in LAYOUTS:
            add(str(layout.gpus), model, card, layout, ServeOptions(context=4096))
        add("free", model, card, Layout(), ServeOptions(context=4096), free_bytes=20 * 2**30)
        add("free, none", model, card, Layout(), ServeOptions(context=4096), free_bytes=0.0)
        add("capacity", model, card, Layout(), ServeOptions(context=4096), capacity_bytes=40 * 2**30)
        add("ngram", model, card, Layout(), ServeOptions(context=4096), draft=Draft(method="ngram", tokens=4))
    for version in ("0.4.3", "0.5.9", "0.6.3", "0.8.5", "0.11.0", "0.14.0", "0.19", "1.0.0", "b6000"):
        add(version, "qwen3-30b-a3b", "h100-sxm", Layout(tp=2), ServeOptions(context=4096), version=version)
    return "\n".join(lines)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.ndarray, np.number)) and not isinstance(value, bool)


#: Kernel → (its formula, sizes in turn, words of it).
HEADS = ((8, 8), (32, 4), (40, 1))
KERNELS: dict[str, tuple[Any, tuple[Any, ...], dict[str, tuple[Any, ...]]]] = {
    "gemm": (kernels.gemm_s, ((1, 2, 60, 4096), (512, 28672), (64, 8192)), {"fused_quantisation": (False, True)}),
    "decode_attention": (
        kernels.decode_attention_s,
        ((1, 40), (1, 300, 40000), HEADS, (64, 128)),
        {"window": (0, 512), "kv_bytes": (1.0, 2.0)},
    ),
    "prefill_attention": (
        kernels.prefill_attention_s,
        ((1, 5), (1, 200, 9000), HEADS, (128,)),
        {"cached": (0, 1000), "window": (0, 512), "kv_bytes": (1.0, 2.0)},
    ),
    "mla_decode": (kernels.mla_decode_s, ((1, 40), (1, 300, 40000), (1, 16, 128)), {"kv_bytes": (1.0, 2.0)}),
    "mla_prefill": (
        kernels.mla_prefill_s,
        ((1, 5), (1, 200, 9000), (16, 128)),
        {"cached": (0, 1000), "kv_bytes": (1.0, 2.0)},
    ),
    "experts": (
        kernels.experts_s,
        ((1, 64, 4096), (4096,), (1536,), (1, 8), (8, 128)),
        {"tp": (1, 2), "ep": (1, 4), "skew": (0.0, 1.2), "matrices": (2, 3)},
    ),
    "state_decode": (kernels.state_decode_s, ((1, 64, 512), (8, 64), (128,), (64, 128)), {}),
    "state_prefill": (kernels.state_prefill_s, ((1, 8), (1, 100, 9000), (8, 64), (128,), (64, 128)), {}),
    "convolution": (kernels.convolution_s, ((1, 8), (1, 100, 9000), (4096,)), {}),
    "all_reduce": (kernels.collective_s, ((1.0, 3e5, 1e9), (1, 2, 3, 8, 16)), {}),
    "all_to_all": (kernels.collective_s, ((1.0, 3e5, 1e9), (1, 2, 3, 8, 16)), {}),
}
#: Numbers other than those that fits start from, and figures of the card.
_VARIANTS: tuple[dict[str, float], ...] = (
    {},
    {"window_alone": 1.0, "splits_context": 0.0, "splits_k": 0.0, "tile_rule": 1.0},
    {"widest_group": 32.0, "tile_rule": 3.0},
    {"multiprocessors": 0.0, "l2_bytes": 0.0},
    {"weight_bytes": 0.53125},
)


def of_kernels() -> str:
    """Each kernel on a card whose multiprocessors and caches are known or not; where fits start and may end."""
    lines = [
        f"{kernel} {one.name}: {one.start} {one.low} {one.high} {one.required} {one.choices}"
        for kernel, parameters in PARAMETERS.items()
        for one in parameters
    ]
    for (kernel, (formula, sizes, named)), variant in itertools.product(KERNELS.items(), _VARIANTS):
        card = {
            "flops_per_s": 1e15,
            "bytes_per_s": 3e12,
            "link_bytes_per_s": 4e11,
            "multiprocessors": 132.0,
            "l2_bytes": 5e7,
            "weight_bytes": 2.0,
        }
        values = {one.name: variant.get(one.name, one.start) for one in PARAMETERS[kernel]}
        card |= {name: value for name, value in variant.items() if name in card}
        c = kernels.KernelCoefficients(kernel=kernel, engine="vllm", dtype="bf16", values=values, **card)
        for first in sizes[0]:
            times = [
                formula(
                    c, *_flat(first, *rest[: len(sizes) - 1]), **dict(zip(named, rest[len(sizes) - 1 :], strict=True))
                )
                for rest in itertools.product(*sizes[1:], *named.values())
            ]
            lines.append(f"{kernel} {variant or ''} {first}: {digits(times)}")
    return "\n".join(lines)


def _flat(*sizes: Any) -> list[Any]:
    return [one for size in sizes for one in (size if isinstance(size, tuple) else (size,))]


#: Name → what it writes down.
FIGURES: dict[str, Callable[[], str]] = {
    **{f"training {name}": lambda name=name: training(name) for name in MODELS},  # type: ignore[misc]
    **{f"serving {name}": lambda name=name: serving(name) for name in ENGINES},  # type: ignore[misc]
    "kernels": of_kernels,
}
