"""A run out of a trainer's values, by what they mean: what all trainers on the Trainer of Transformers have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trilemma.commands.option_words import whole
from trilemma.engines.deepspeed.config import DeepSpeedConfig, from_mapping, read_config
from trilemma.engines.trainer import Values
from trilemma.engines.training import framework_facts
from trilemma.engines.transformers.run import Sharding, TrainerRun
from trilemma.errors import InputError, shorten
from trilemma.plans.training import Attention, Implementation, Loss
from trilemma.workloads import Examples, Method

_DTYPES = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32", "fp32": "fp32",
    "float": "fp32", "auto": None,
}  # fmt: skip


def trainer_run(
    values: Values,
    *,
    framework: Implementation,
    method: Method | None = None,
    deepspeed: DeepSpeedConfig | None = None,
    sharding: Sharding | None = None,
    launched_compute: str | None = None,
) -> TrainerRun:
    """What ``values`` state. ``method`` None asks the values; a DeepSpeed file decides what they leave open."""
    model = values.text("model")
    if not model or model.startswith("$"):
        key = values.trainer.meaning["model"][0]
        raise InputError(f"the command names no model; give {values.dashes}{key}, such as Qwen/Qwen3-8B")
    chosen = adapters(values) if method is None else method
    micro, batch = _batch(values, deepspeed)
    return TrainerRun(
        framework=framework,
        model=model,
        micro_batch=micro,
        seq=values.whole("seq"),
        sharding=sharding or (deepspeed.sharding if deepspeed else Sharding()),
        accumulation=_first(values.whole("accumulation"), deepspeed and deepspeed.accumulation),
        global_batch=batch,
        compute=compute(values, deepspeed, launched_compute),
        dtype=dtype(values),
        optimizer=_first(values.text("optimizer"), deepspeed and deepspeed.optimizer) or "adamw_torch",
        projected=projected(values.text("optimizer_args")),
        checkpointing=checkpointing(values),
        method=chosen,
        dora=values.on("dora"),
        rank=0 if chosen == "full" else _first(values.whole("rank"), 16),
        targets=() if chosen == "full" else targets(values),
        base_format="int8" if chosen == "lora" and values.on("load_8bit") else None,
        attention=attention(values),
        loss=loss(values),
        fused_layers=values.on("liger"),
        compiled=values.on("compile"),
        activation_offload=values.on("activation_offload") or offloads_checkpoints(values.found("checkpointing")[1]),
        tp=max(_first(values.whole("tp", low=0), 1) or 1, deepspeed.tp if deepspeed else 1),
        cp=max(_first(values.whole("cp", low=0), 1) or 1, deepspeed.sequence_parallel if deepspeed else 1),
        tiled=values.on("tiled"),
        mlp_tiles=values.whole("mlp_tiles"),
        steps=steps(values),
        examples=examples(values),
        unknown=(*values.unknown, *(deepspeed.unknown if deepspeed else ())),
        warnings=[*values.warnings(), *(deepspeed.warnings if deepspeed else ())],
    )


def _first(value: Any, other: Any) -> Any:
    return value if value is not None else other or None


def _batch(values: Values, deepspeed: DeepSpeedConfig | None) -> tuple[int | None, int | None]:
    """(micro-batch, sequences of a step) as stated; a DeepSpeed file that states the step alone leaves the micro-batch open."""
    micro, stated = values.whole("micro_batch"), deepspeed.micro_batch if deepspeed else None
    if values.has("micro_batch") and stated is not None and micro != stated:
        raise InputError(
            f"{values.found('micro_batch')[0]} {micro} is not the DeepSpeed file's train_micro_batch_size_per_gpu {stated}; make"
            ' them equal or write "auto" in the file'
        )
    batch = deepspeed.global_batch if deepspeed else None
    if batch is not None and stated is None and not values.has("micro_batch"):
        micro = None
    return (micro if stated is None else stated), batch or values.whole("global_batch")


def projected(arguments: str | None) -> int | None:
    """The rank that ``--optim_args rank=64,update_proj_gap=200`` states (transformers/trainer.py, _get_optimizer_kwargs)."""
    pairs = (one.partition("=") for one in (arguments or "").replace(" ", "").split(","))
    return next((whole(value, "optim_args rank") for name, _, value in pairs if name == "rank"), None)


def steps(values: Values) -> int | None:
    text = values.text("steps")
    return None if text is None or text.startswith("-") or text == "0" else values.whole("steps")


def adapters(values: Values) -> Method:
    """What is trained where flags of PEFT say it."""
    quantised = values.on("load_4bit")
    if not values.on("adapters") and not values.has("rank") and not values.has("targets") and not quantised:
        return "full"
    return "qlora" if quantised else "dora" if values.on("dora") else "lora"


def targets(values: Values) -> tuple[str, ...]:
    """Names of layers with adapters; none stands for every linear layer."""
    named = values.words("targets")
    return () if any(word in ("all", "all-linear", "all_linear") for word in named) else named


def examples(values: Values) -> Examples:
    """How examples fill sequences: packed, as long as a block of text that was cut (``block_size``), else up to the sequence."""
    if values.on("packing"):
        return "packed"
    return "full" if values.found("seq")[0].endswith("block_size") or values.on("blocks") else "capped"


def compute(values: Values, deepspeed: DeepSpeedConfig | None, launched: str | None) -> str:
    """The format of computation: a flag, the DeepSpeed file, the launcher's file, the trainer's default, in this order."""
    for name in ("bf16", "fp16"):
        if values.has(name) and values.on(name):
            own = name
            fixed = deepspeed.compute if deepspeed else None
            if fixed is not None and fixed != own:
                key = values.found(name)[0]
                raise InputError(
                    f'{key} is not what the DeepSpeed file enables ({fixed}); make them agree or write "auto" in the file'
                )
            return own
    if deepspeed and deepspeed.compute:
        return deepspeed.compute
    if launched not in (None, "fp32"):
        return str(launched)
    denied = values.has("bf16") and not values.on("bf16")
    return "bf16" if not denied and values.on("bf16") else "fp32"


def dtype(values: Values) -> str | None:
    text = values.text("dtype")
    if text is None:
        return None
    name = text.rpartition(".")[2].lower()
    if name not in _DTYPES:
        raise InputError(f"{values.found('dtype')[0]} {shorten(text)!r} is none of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def checkpointing(values: Values) -> bool:
    """Whether whole layers are computed again: on, off, or a word that names how (Unsloth's "unsloth", "offload")."""
    if values.on("no_checkpointing"):
        return False
    value = values.found("checkpointing")[1]
    if isinstance(value, str) and value.lower() in ("unsloth", "offload", "offload_disk", "full", "selective"):
        return True
    return value is not None and values.on("checkpointing")


def offloads_checkpoints(value: Any) -> bool:
    """Whether the inputs of layers that are computed again wait on the host (unsloth_zoo/gradient_checkpointing.py; Axolotl's
    words for the same)."""
    return isinstance(value, str) and value.lower() in ("unsloth", "offload", "offload_disk")


def attention(values: Values) -> Attention:
    text = (values.text("attention") or "sdpa").lower()
    if "flash" in text or "flex" in text or text in ("fa2", "fa3", "true"):
        return "flash"
    return "eager" if text in ("eager", "disabled") else "sdpa"


def loss(values: Values) -> Loss:
    if values.on("liger"):
        return "fused"
    text = values.text("loss")
    return "chunked" if text is not None and "chunk" in text else "full"


def deepspeed_of(values: Values, folder: Path) -> DeepSpeedConfig | None:
    """The DeepSpeed configuration that the values name: a file, beside the trainer's own too, one that trainers come with, or
    a mapping."""
    presets = framework_facts("deepspeed_presets")["presets"]
    value = values.found("deepspeed")[1]
    value = value[0] if isinstance(value, list) and value else value
    if value in (None, "", False, True, []):
        return None
    if isinstance(value, dict):
        return from_mapping(value, name=values.found("deepspeed")[0])
    text = str(value)
    if text in presets:
        return from_mapping(dict(presets[text]), name=text)
    if text.lstrip().startswith("{"):
        from trilemma.commands.bounded_yaml import load_all

        found = load_all(text, name=values.found("deepspeed")[0])[0]
        if not isinstance(found, dict):
            raise InputError(f"{values.found('deepspeed')[0]} {shorten(text)!r} is not a JSON object")
        return from_mapping(found, name=values.found("deepspeed")[0])
    own = Path(text)
    beside = folder / own
    known = presets.get(own.name.removesuffix(".json"))
    here, there = (_is_there(one) for one in (own, beside))
    if known is not None and not here and not there:
        return from_mapping(dict(known), name=text)
    return read_config(str(own if here or own.is_absolute() else beside))


def _is_there(path: Path) -> bool:
    """Whether a file of this name is there; a name longer than the file system's names none."""
    try:
        return path.exists()
    except OSError:
        return False
