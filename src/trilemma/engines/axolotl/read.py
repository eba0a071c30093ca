"""An Axolotl YAML file to a training plan, its DeepSpeed or FSDP part included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trilemma.commands.bounded_yaml import load_all
from trilemma.commands.launchers import split_launch
from trilemma.commands.option_words import read_options, real, truth, whole
from trilemma.engines.deepspeed.config import DeepSpeedConfig, from_mapping, read_config
from trilemma.engines.fsdp import fsdp_sharding
from trilemma.engines.preference import UPDATE_ONLY, frozen, generating
from trilemma.engines.training import TrainingCommand, framework_facts, unknown_warning
from trilemma.engines.transformers.run import Sharding, TrainerRun, assemble
from trilemma.engines.transformers.trainer_run import offloads_checkpoints, projected
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.outside_files import read_text
from trilemma.plans.training import Attention, Loss
from trilemma.workloads import Method

_ENDINGS = (".yaml", ".yml")
_LOSSES = ("liger_fused_linear_cross_entropy", "cut_cross_entropy", "unsloth_cross_entropy_loss")


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of ``axolotl train FILE.yml`` (or its module under a launcher); flags go over the file. Raises `InputError`."""
    launch = split_launch(words)
    rest = list(launch.words) or list(words)
    path = next((word for word in rest if word.endswith(_ENDINGS) and not word.startswith("-")), None)
    if path is None:
        raise InputError("axolotl train needs its configuration; give axolotl train FILE.yml")
    documents = load_all(read_text(Path(path)), name=path)
    document = documents[0] if documents else None
    if not isinstance(document, Mapping):
        raise InputError(f"{shorten(path)} holds no mapping; give an Axolotl configuration")
    flags = read_options([word for word in rest if word != path], fold=True)
    over = {name: _scalar(found[0] if found else True) for name, found in flags.words.items()}
    values = {**{str(key): value for key, value in document.items()}, **over}
    run = run_of(values, name=path)
    return assemble(run, launch, gpus=gpus)


def run_of(values: Mapping[str, Any], *, name: str) -> TrainerRun:
    """What the contents of an Axolotl file state."""
    facts = framework_facts("axolotl_keys")
    keys = set(facts["keys"])
    unknown = tuple(
        key
        for key in values
        if key not in keys and key != "fsdp" and not key.startswith(("liger_", "plugin", "cut_cross"))
    )
    deepspeed = _deepspeed(values.get("deepspeed"), name)
    sharding, left = (deepspeed.sharding, ()) if deepspeed else _fsdp(values)
    unknown = (*unknown, *left)
    method, rank, targets = _adapters(values)
    model = values.get("base_model")
    if not isinstance(model, str) or not model:
        raise InputError(f"{shorten(name)}: base_model is missing; name a model such as meta-llama/Llama-3.1-8B")
    steps = values.get("max_steps")
    run = TrainerRun(
        framework="axolotl",
        model=model,
        micro_batch=_count(values, "micro_batch_size") or 1,
        seq=_count(values, "sequence_len"),
        sharding=sharding,
        accumulation=_count(values, "gradient_accumulation_steps"),
        global_batch=deepspeed.global_batch if deepspeed else _count(values, "batch_size"),
        compute=_compute(values),
        # utils/loaders/model.py: drawn anew from the configuration, in PyTorch's default format
        dtype="fp32" if _on(values, "random_init") or _on(values, "random_init_weights") else None,
        optimizer=str(values.get("optimizer") or "adamw_torch_fused"),
        checkpointing=_on(values, "gradient_checkpointing", words=("unsloth", "offload", "offload_disk")),
        projected=projected(_optimizer_args(values.get("optim_args"))),
        method=method,
        dora=_on(values, "peft_use_dora"),
        rank=rank,
        targets=targets,
        base_format="int8" if _on(values, "load_in_8bit") and method == "lora" else None,
        attention=_attention(values),
        loss=_loss(values),
        # cut_cross_entropy/cce.py: blocks of logits live in shared memory
        loss_tile=1 if _cuts(values) else None,
        fused_layers=_fused_layers(values),
        compiled=_on(values, "torch_compile", words=("auto",)),
        activation_offload=_on(values, "activation_offloading", words=("legacy", "disk"))
        or offloads_checkpoints(values.get("gradient_checkpointing")),
        tp=_count(values, "tensor_parallel_size") or 1,
        cp=_count(values, "context_parallel_size") or _count(values, "sequence_parallel_degree") or 1,
        # monkeypatch/tiled_mlp/patch.py: pieces of some 32,768 tokens unless their number is given
        tiled=_on(values, "tiled_mlp"),
        mlp_tiles=_count(values, "tiled_mlp_num_shards"),
        tile_tokens=32768,
        examples="packed" if _on(values, "sample_packing") else "capped",
        steps=whole(steps, "max_steps") if isinstance(steps, int) and steps > 0 else None,
        unknown=unknown,
        warnings=[*unknown_warning(unknown, keys, where="Axolotl"), *(deepspeed.warnings if deepspeed else ())],
    )
    _lisa(run, values)
    _preference(run, values)
    return run


#: ``rl`` → sequences of an example, a reference model beside, whether it generates.
_RL = {
    "dpo": (2, True, False), "ipo": (2, True, False), "kto": (1, True, False), "kto_pair": (2, True, False),
    "orpo": (2, False, False), "simpo": (2, False, False), "grpo": (1, False, True), "gdpo": (1, False, True),
}  # fmt: skip


def _preference(run: TrainerRun, values: Mapping[str, Any]) -> None:
    """What ``rl``, ``reward_model``, ``trl`` and ``vllm`` hold beside the model (utils/schemas/enums.py, trl.py, vllm.py)."""
    kind = str(values.get("rl") or ("reward" if _on(values, "reward_model") else "")).lower()
    if kind in ("", "none", "false"):
        return
    if kind == "reward":
        run.sequences = 2
        return
    if kind not in _RL:
        text = f"rl: {shorten(kind)} is not known here; counted as supervised training"
        run.warnings.append(PlanWarning(code="not-counted", message=text))
        return
    run.sequences, reference, generates = _RL[kind]
    options, serving = (part if isinstance(part, Mapping) else {} for part in (values.get("trl"), values.get("vllm")))
    beta = options.get("beta") if isinstance(options.get("beta"), (int, float)) else 0.0
    if run.method == "full" and not _on(values, "precompute_ref_log_probs") and (reference or (generates and beta)):
        frozen(run, "reference model")
    if not generates:
        return
    run.warnings.append(UPDATE_ONLY)
    length = options.get("max_completion_length")
    if isinstance(length, int) and run.seq is not None and not isinstance(length, bool):
        run.seq = max(run.seq, length)
    if _on(options, "use_vllm") and str(options.get("vllm_mode") or "server") == "colocate":
        share = serving.get("gpu_memory_utilization", options.get("vllm_gpu_memory_utilization", 0.3))
        generating(run, real(share, "vllm.gpu_memory_utilization"), asleep=_on(options, "vllm_enable_sleep_mode"),
                   where="vllm.gpu_memory_utilization")  # fmt: skip
    elif not _on(options, "use_vllm"):
        text = "the model generates by itself: the cache of what it generates is not counted"
        run.warnings.append(PlanWarning(code="not-counted", message=text))


def _lisa(run: TrainerRun, values: Mapping[str, Any]) -> None:
    if values.get("lisa_n_layers"):
        text = "lisa_n_layers: gradients of so many layers alone are kept; those of all are counted"
        run.warnings.append(PlanWarning(code="counted-too-much", message=text))


def _optimizer_args(value: Any) -> str | None:
    """``optim_args`` as one text: Axolotl takes a mapping too."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={one}" for name, one in value.items())
    return None if value is None else str(value)


def _scalar(text: Any) -> Any:
    if str(text).lower() in ("true", "false"):
        return str(text).lower() == "true"
    return int(text) if str(text).isdecimal() else text


def _count(values: Mapping[str, Any], key: str) -> int | None:
    return None if values.get(key) in (None, "") else whole(values[key], key)


def _on(values: Mapping[str, Any], key: str, *, words: Sequence[str] = ()) -> bool:
    value = values.get(key)
    if value is None or value == "":
        return False
    return True if isinstance(value, str) and value in words else truth(value, key)


def _words(values: Mapping[str, Any], key: str) -> list[str]:
    """A list of words, or one text."""
    value = values.get(key) or []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InputError(f"{key} {shorten(str(value))!r} is not a list; write its entries below it, each behind a dash")
    return [str(one) for one in value]


def _adapters(values: Mapping[str, Any]) -> tuple[Method, int, tuple[str, ...]]:
    kind = values.get("adapter")
    if kind in (None, ""):
        return "full", 0, ()
    if kind not in ("lora", "qlora"):
        raise InputError(f"adapter {shorten(str(kind))!r} is not read; use lora, qlora or none")
    rank = _count(values, "lora_r")
    if rank is None:
        raise InputError(f"adapter {kind} needs lora_r; give one such as lora_r: 16")
    method: Method = "qlora" if kind == "qlora" else "dora" if _on(values, "peft_use_dora") else "lora"
    named = values.get("lora_target_modules")
    if _on(values, "lora_target_linear") or named in (None, "", "all-linear"):
        # Without any target PEFT chooses by model; for Llama-like ones q_proj and v_proj.
        defaults = framework_facts("transformers_flags")["defaults"]["lora_target_modules"]
        return method, rank, () if _on(values, "lora_target_linear") or named == "all-linear" else tuple(defaults)
    names = named if isinstance(named, list) else [named]
    return method, rank, tuple(str(one) for one in names)


def _compute(values: Mapping[str, Any]) -> str:
    for key in ("bf16", "bfloat16"):
        if values.get(key) in ("auto", "full") or _on(values, key, words=("auto", "full")):
            return "bf16"
    return "fp16" if _on(values, "fp16") or _on(values, "float16") else "fp32"


def _attention(values: Mapping[str, Any]) -> Attention:
    named = str(values.get("attn_implementation") or "")
    if _on(values, "flash_attention") or "flash" in named or _on(values, "xformers_attention"):
        return "flash"
    return "eager" if _on(values, "eager_attention") or named == "eager" else "sdpa"


def _fused_layers(values: Mapping[str, Any]) -> bool:
    """Norms and gated activations of Liger, which keep their inputs alone (integrations/liger)."""
    return _on(values, "liger_rms_norm") and (_on(values, "liger_glu_activation") or _on(values, "liger_swiglu"))


def _cuts(values: Mapping[str, Any]) -> bool:
    return _on(values, "cut_cross_entropy") or "CutCrossEntropy" in " ".join(_words(values, "plugins"))


def _loss(values: Mapping[str, Any]) -> Loss:
    if any(_on(values, key) for key in _LOSSES) or _cuts(values):
        return "fused"
    return "chunked" if _on(values, "chunked_cross_entropy") else "full"


def _deepspeed(value: Any, name: str) -> DeepSpeedConfig | None:
    if value in (None, "", False):
        return None
    if isinstance(value, Mapping):
        return from_mapping(value, name=name)
    own = Path(str(value))
    beside = Path(name).parent / own
    return read_config(str(own if own.exists() or own.is_absolute() else beside))


def _fsdp(values: Mapping[str, Any]) -> tuple[Sharding, tuple[str, ...]]:
    config = values.get("fsdp_config") or {}
    words = _words(values, "fsdp")
    if not config and not words:
        return Sharding(), ()
    if not isinstance(config, Mapping):
        raise InputError("fsdp_config is not a mapping; write its keys below it, indented")
    flat = [word for one in words for word in str(one).split()]
    shard, replicate = _count(values, "dp_shard_size"), _count(values, "dp_replicate_size")
    group = shard if replicate and replicate > 1 else None
    return fsdp_sharding(flat, config, version=values.get("fsdp_version"), group=group)
