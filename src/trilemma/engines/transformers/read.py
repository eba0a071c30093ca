"""Commands of scripts on the Trainer of Transformers: torchrun, ``deepspeed``, ``accelerate launch``, with their files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trilemma.commands.launchers import Launch, split_launch
from trilemma.commands.option_words import Options, read_options, whole
from trilemma.engines.accelerate.config import AccelerateConfig, accelerate_from_mapping, read_accelerate
from trilemma.engines.deepspeed.config import DeepSpeedConfig, read_config
from trilemma.engines.fsdp import fsdp_sharding
from trilemma.engines.training import TrainingCommand, framework_facts, unknown_caution
from trilemma.engines.transformers.run import Run, Sharding, assemble
from trilemma.errors import InputError, shorten
from trilemma.models.documents import read_json
from trilemma.plans.training import Attention, Implementation
from trilemma.workloads import Method

_ATTENTION: dict[str, Attention] = {
    "flash_attention_2": "flash", "flash_attention_3": "flash", "flex_attention": "flash", "sdpa": "sdpa", "eager": "eager",
}  # fmt: skip
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "auto": None}


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a fine-tuning command with the files that it names. Raises `InputError`."""
    launch = split_launch(words)
    if launch.script == "axolotl.cli.train":
        from trilemma.engines.axolotl import read as axolotl

        return axolotl.read(words, gpus=gpus)
    options, unknown = _options(launch)
    launched = _accelerate(launch)
    deepspeed = _deepspeed(options, launched)
    run = _run(options, launched, deepspeed)
    run.unknown = (*unknown, *(launched.unknown if launched else ()), *(deepspeed.unknown if deepspeed else ()))
    facts = framework_facts("transformers_flags")
    run.cautions += list(
        unknown_caution(unknown, (f"--{name}" for name in facts["flags"]), where="this script's Trainer")
    )
    run.cautions += [*(launched.cautions if launched else ()), *(deepspeed.cautions if deepspeed else ())]
    return assemble(
        run, launch, gpus=gpus, processes=launched.processes if launched else None,
        nodes=launched.machines if launched else None,
    )  # fmt: skip


def _options(launch: Launch) -> tuple[Options, tuple[str, ...]]:
    facts = framework_facts("transformers_flags")
    known = {
        *facts["flags"],
        *facts["model_flags"],
        *facts["length_flags"],
        *facts["adapter_flags"],
        "fsdp",
        "deepspeed",
    }
    known |= {"deepspeed_config", "torch_dtype", "dtype", "attn_implementation", "local_rank"}
    switches = {*facts["switches"], "use_peft", "peft", "lora", "use_lora", "use_flash_attn"}
    # DeepSpeed's own scripts take --deepspeed as a switch with the file behind --deepspeed_config.
    several = {"lora_target_modules", "fsdp", "report_to", "deepspeed"}
    options = read_options(
        launch.words, switches=switches, values=known - switches - several, lists=several, fold=True
    )  # fmt: skip
    return options, tuple(name for name in options.unknown if name.removeprefix("--") not in known)


def _accelerate(launch: Launch) -> AccelerateConfig | None:
    """The configuration behind ``accelerate launch``: its file, with launch flags in the file's words over it."""
    if launch.starter != "accelerate":
        return None
    facts = framework_facts("accelerate")
    given = read_options(launch.launcher, values=frozenset(facts["launch_values"]), fold=True)
    path = given.text("config_file")
    document: dict[str, Any] = {}
    if path is not None:
        found = read_accelerate(path)
        if len(given.words) == 1:
            return found
        from trilemma.commands.bounded_yaml import load_all, read_text

        document = dict(load_all(read_text(Path(path)), name=path)[0])
    return accelerate_from_mapping(_launch_flags(given, document), name=path or "accelerate launch")


def _launch_flags(given: Options, document: dict[str, Any]) -> dict[str, Any]:
    """Flags of ``accelerate launch`` as keys of its file."""
    facts = framework_facts("accelerate")
    fsdp, deepspeed = dict(document.get("fsdp_config") or {}), dict(document.get("deepspeed_config") or {})
    for name, words in given.words.items():
        value = words[0] if words else True
        if name in facts["fsdp"]:
            fsdp[name] = _scalar(value)
        elif name in facts["deepspeed"]:
            deepspeed[name] = _scalar(value)
        elif name in ("num_processes", "num_machines", "mixed_precision"):
            document[name] = _scalar(value)
    kind = document.get("distributed_type", "MULTI_GPU")
    kind = "FSDP" if given.on("use_fsdp") else "DEEPSPEED" if given.on("use_deepspeed") else kind
    return {**document, "distributed_type": kind, "fsdp_config": fsdp, "deepspeed_config": deepspeed}


def _scalar(value: Any) -> Any:
    text = str(value)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdigit() else value


def _deepspeed(options: Options, launched: AccelerateConfig | None) -> DeepSpeedConfig | None:
    if launched is not None and launched.deepspeed is not None:
        return launched.deepspeed
    for name in ("deepspeed_config", "deepspeed"):
        path = options.text(name)
        if path is not None:
            return read_config(path)
    return None


def _run(options: Options, launched: AccelerateConfig | None, deepspeed: DeepSpeedConfig | None) -> Run:
    facts = framework_facts("transformers_flags")
    model = options.text(*facts["model_flags"])
    if not model:
        raise InputError("the command names no model; give --model_name_or_path NAME")
    micro = options.whole("per_device_train_batch_size", "per_gpu_train_batch_size", "train_micro_batch_size_per_gpu")
    stated = deepspeed.micro_batch if deepspeed else None
    if micro is not None and stated is not None and micro != stated:
        raise InputError(
            f"--per_device_train_batch_size {micro} is not the DeepSpeed file's train_micro_batch_size_per_gpu {stated};"
            ' make them equal or write "auto" in the file'
        )
    method, rank, targets = _adapters(options)
    compute = _compute(options, launched, deepspeed)
    framework: Implementation = "deepspeed" if deepspeed else "accelerate" if launched else "transformers"
    sharding = (
        deepspeed.sharding if deepspeed else launched.sharding if launched and launched.sharding.by != "ddp" else None
    )
    own = _own_fsdp(options)
    optimizer = options.text("optim", "optimizer") or (deepspeed.optimizer if deepspeed else None)
    return Run(
        framework=framework,
        model=model,
        micro_batch=micro or stated,
        seq=options.whole(*facts["length_flags"]),
        sharding=own or sharding or Sharding(),
        accumulation=options.whole("gradient_accumulation_steps") or (deepspeed.accumulation if deepspeed else None),
        global_batch=deepspeed.global_batch if deepspeed else None,
        compute=compute,
        dtype=_dtype(options),
        optimizer=optimizer or "adamw_torch",
        checkpointing=options.on("gradient_checkpointing", "activation_checkpointing"),
        method=method,
        rank=rank,
        targets=targets,
        base_format="int8" if options.on("load_in_8bit") else None,
        attention=_attention(options),
        loss="fused" if options.on("use_liger_kernel", "use_liger") else "full",
        compiled=options.on("torch_compile"),
        activation_offload=options.on("activation_offloading"),
        tp=max(launched.tp if launched else 1, deepspeed.tp if deepspeed else 1),
        cp=max(launched.cp if launched else 1, deepspeed.sequence_parallel if deepspeed else 1),
        steps=_steps(options),
    )


def _steps(options: Options) -> int | None:
    value = options.text("max_steps")
    return None if value is None or value.startswith("-") else whole(value, "--max_steps")


def _adapters(options: Options) -> tuple[Method, int, tuple[str, ...]]:
    facts = framework_facts("transformers_flags")["defaults"]
    wanted = options.on("use_peft", "peft", "lora", "use_lora") or options.has(
        "lora_r", "lora_rank", "lora_target_modules"
    )
    quantised = options.on("load_in_4bit")
    if not wanted and not quantised:
        return "full", 0, ()
    if quantised and not wanted:
        raise InputError("--load_in_4bit trains nothing by itself; add --use_peft and --lora_r")
    rank = options.whole("lora_r", "lora_rank") or int(facts["lora_r"])
    named = options.words.get("lora_target_modules")
    targets = tuple(part for word in named or facts["lora_target_modules"] for part in word.split(",") if part)
    method: Method = "qlora" if quantised else "dora" if options.on("use_dora") else "lora"
    return method, rank, () if targets in (("all-linear",), ("all",)) else targets


def _compute(options: Options, launched: AccelerateConfig | None, deepspeed: DeepSpeedConfig | None) -> str:
    """Format of computation: the script's flags, then the file's. A DeepSpeed file that states one must agree."""
    own = "bf16" if options.on("bf16") else "fp16" if options.on("fp16") else None
    fixed = deepspeed.compute if deepspeed else None
    if own is not None and fixed is not None and own != fixed:
        raise InputError(
            f'--{own} is not what the DeepSpeed file enables ({fixed}); make them agree or write "auto" in the file'
        )
    return own or fixed or (launched.compute if launched else None) or "fp32"


def _dtype(options: Options) -> str | None:
    value = options.text("torch_dtype", "dtype")
    if value is None:
        return None
    if value not in _DTYPES:
        raise InputError(f"--torch_dtype {shorten(value)!r} is none of {', '.join(_DTYPES)}")
    return _DTYPES[value]


def _attention(options: Options) -> Attention:
    value = options.text("attn_implementation")
    if value is None:
        return "flash" if options.on("use_flash_attn") else "sdpa"
    name = value.rpartition("/")[2].replace("-", "_")
    return _ATTENTION.get(value, "flash" if "flash" in name else "sdpa")


def _own_fsdp(options: Options) -> Sharding | None:
    """``--fsdp "full_shard auto_wrap offload"`` with ``--fsdp_config``."""
    words = [part for word in options.words.get("fsdp", ()) for part in word.split()]
    config = _fsdp_config(options.text("fsdp_config"))
    if not words and not config:
        return None
    # The Trainer takes a bare switch for FSDP2 (transformers 5); "false" leaves it off.
    if words and words[0].lower() in ("false", "0", "no", "none"):
        return None
    named = [word for word in words if word.lower() not in ("true", "1", "yes")]
    return fsdp_sharding(named, config)[0]


def _fsdp_config(value: str | None) -> Mapping[str, Any]:
    if value is None:
        return {}
    if value.lstrip().startswith("{"):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"--fsdp_config {shorten(value)!r} is not valid JSON; give an object or a file") from None
        return found if isinstance(found, Mapping) else {}
    return read_json(Path(value), limit=2**20)
