"""What every reader of commands understands: each key that counts with words that it may hold, alone and with others.

A reading is the command's plan and load beside those of the plain command: what differs, or the refusal. No figure is in it,
so that it moves where a reader does and nowhere else.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from trilemma import engines
from trilemma.engines.torchtitan.read import SCHEDULES
from trilemma.engines.trainer import trainer
from trilemma.engines.training import framework_facts, read_training
from trilemma.errors import InputError
from trilemma.models.architecture import Model

#: Words that keys of many meanings take, and by meaning those that mean something there.
ANY = ("2", "4", "true", "false", "0.5")
BY_MEANING: dict[str, tuple[str, ...]] = {
    "optimizer": (
        "adafactor",
        "adamw_bnb_8bit",
        "paged_adamw_32bit",
        "adamw_torch_fused",
        "lion",
        "sgd",
        "muon",
        "galore_adamw",
    ),
    "attention": ("eager", "flash_attention_2", "sdpa", "fa3"),
    "checkpointing": ("unsloth", "offload", "full"),
    "dtype": ("torch.bfloat16", "float16", "float32", "auto", "int3"),
    "loss": ("chunked_nll", "nll"),
    "deepspeed": ("zero1", "zero2", "zero3", "zero3_offload"),
    "fsdp": ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard"),
    "targets": ("all-linear", "q_proj", "q_proj,v_proj"),
    "seq": ("2048",),
    "rank": ("16",),
    "quantization": ("4", "8", "bnb"),
    "method": ("full", "lora", "freeze"),
    "tuner": ("full", "lora", "adalora"),
    "kind": ("dpo", "grpo", "ppo", "kto", "orpo", "sft", "rm", "pt", "simpo"),
    "stage": ("dpo", "ppo", "kto", "sft", "rm", "pt"),
    "steps": ("-1", "100"),
}
#: Characters of a value or refusal that are kept.
_MOST = 100
QWEN = "Qwen/Qwen2.5-7B-Instruct"
GPT = (
    "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32"
    " --ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096"
    " --micro-batch-size 1 --global-batch-size 64 --swiglu --vocab-size 128256 --untie-embeddings-and-output-weights"
)
#: Trainer → (its table, plain commands); every one of its keys is tried on each.
TRAINERS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "trl": (
        "trl",
        tuple(f"trl {kind} --model_name_or_path {QWEN}" for kind in ("sft", "dpo", "grpo", "reward")),
        "--{}",
    ),
    "llama-factory": (
        "llama_factory",
        tuple(
            f"llamafactory-cli train --model_name_or_path {QWEN} --bf16 --stage {kind}"
            for kind in ("sft", "dpo", "ppo")
        ),
        "--{}",
    ),
    "swift": (
        "swift",
        (f"NPROC_PER_NODE=8 swift sft --model {QWEN}", f"NPROC_PER_NODE=8 swift rlhf --model {QWEN} --rlhf_type ppo"),
        "--{}",
    ),
    "swift-megatron": (
        "swift_megatron",
        (
            f"NPROC_PER_NODE=8 megatron sft --model {QWEN} --max_length 1024",
            f"NPROC_PER_NODE=8 megatron rlhf --rlhf_type dpo --model {QWEN} --max_length 1024",
        ),
        "--{}",
    ),
    "openrlhf": (
        "openrlhf",
        (
            f"python -m openrlhf.cli.train_ppo_ray --pretrain {QWEN} --colocate_all_models",
            f"deepspeed --module openrlhf.cli.train_sft --pretrain {QWEN}",
        ),
        "--{}",
    ),
    "verl": ("verl", (f"python -m verl.trainer.main_ppo actor_rollout_ref.model.path={QWEN}",), "{}="),
    "torchtune": (
        "torchtune",
        (
            "tune run --nproc_per_node 8 full_finetune_distributed --config llama3_1/8B_full",
            "tune run --nproc_per_node 2 lora_finetune_distributed --config llama3_1/8B_lora",
        ),
        "{}=",
    ),
    "megatron-bridge": (
        "megatron_bridge",
        ("torchrun --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config",),
        "--{}",
    ),
    "unsloth": ("unsloth", ("python unsloth-cli.py --model_name unsloth/Qwen3-8B",), "--{}"),
    "transformers": (
        "transformers_flags",
        (f"torchrun --nproc_per_node 8 train.py --model_name_or_path {QWEN} --max_length 2048",),
        "--{}",
    ),
}


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Fields of nested values by dotted name; a model by its sizes."""
    if isinstance(value, Model):
        yield (
            prefix,
            f"{value.name}: {len(value.layers)} layers, {value.hidden} wide, {sum(one.elements for one in value.tensors):,}",
        )
    elif is_dataclass(value):
        for one in fields(value):
            yield from flat(getattr(value, one.name), f"{prefix}.{one.name}" if prefix else one.name)
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from flat(one, f"{prefix}[{name}]")
    elif isinstance(value, tuple) and any(is_dataclass(one) for one in value):
        for at, one in enumerate(value):
            yield from flat(one, f"{prefix}[{at}]")
    else:
        yield prefix, str(value)[:_MOST]


class Readings:
    """Readings of one reader, each beside the plain one."""

    def __init__(self, read: Callable[[Sequence[str]], Any], start: str) -> None:
        self._read, self._start = read, shlex.split(start)
        self._plain = self._found(())
        self.lines = [f"{start}: {_shown(self._plain, {})}"]

    def add(self, words: Sequence[str]) -> bool:
        """One more, written down where it differs; whether it was read."""
        found = self._found(words)
        shown = _shown(found, self._plain)
        if shown:
            self.lines.append(f"{shlex.join(words)}: {shown}")
        return "refused" not in found

    def _found(self, words: Sequence[str]) -> dict[str, str]:
        try:
            return dict(flat(self._read([*self._start, *words])))
        except InputError as error:
            return {"refused": " ".join(str(error).split())[:_MOST]}


def _shown(found: dict[str, str], plain: dict[str, str]) -> str:
    left = [f"without {name}" for name in plain if name not in found] if "refused" not in found else []
    return "; ".join([f"{name}={value}" for name, value in found.items() if plain.get(name) != value] + left)


def _alone_and_together(
    readings: Readings,
    keys: Iterable[tuple[str, Sequence[str]]],
    *,
    seed: str,
    spelled: str = "--{}",
    together: int = 80,
) -> None:
    taken: list[list[str]] = []
    for key, words in keys:
        for word in words:
            name = spelled.format(key)
            given = [f"{name}{word}"] if name.endswith("=") else [name, word] if word else [name]
            if readings.add(given):
                taken.append(given)
    for number in range(together if taken else 0):
        # The same three whatever other keys come and go.
        drawn = [min(taken, key=lambda words: crc32(f"{seed} {number} {at} {words}".encode())) for at in range(3)]
        readings.add([word for words in drawn for word in words])


def trainer_readings(framework: str) -> str:
    """A trainer with a table of meanings."""
    table, starts, spelled = TRAINERS[framework]
    lines = []
    meanings = trainer(table).meaning
    for start in starts:
        readings = Readings(lambda words: read_training(framework, words, gpus=8), start)
        keys = [
            (key, (*BY_MEANING.get(meaning, ()), *ANY, "")[: 9 if at == 0 else 2])
            for meaning, names in meanings.items()
            for at, key in enumerate(names)
        ]
        _alone_and_together(readings, keys, seed=framework, spelled=spelled)
        lines += readings.lines
    return "\n".join(lines)


def megatron_readings() -> str:
    """Megatron-LM: every flag of its table, on a dense model and one of experts."""
    facts = framework_facts("megatron_flags")
    words = {
        "fp8-format": ("hybrid", "e4m3"),
        "fp8-recipe": ("delayed", "tensorwise", "blockwise", "mxfp8"),
        "fp4-format": ("e2m1",),
        "optimizer": ("sgd", "muon", "lion", "dist_muon"),
        "recompute-granularity": ("full", "selective"),
        "recompute-method": ("block", "uniform"),
        "data-parallel-sharding-strategy": ("no_shard", "optim_grads", "optim_grads_params"),
        "cp-comm-type": ("a2a", "p2p"),
        "attention-backend": ("unfused", "flash"),
        "cross-entropy-fusion-impl": ("linear", "te"),
        "main-grads-dtype": ("bf16",),
        "main-params-dtype": ("fp16",),
        "exp-avg-dtype": ("bf16", "fp8"),
        "exp-avg-sq-dtype": ("bf16",),
        "moe-token-dispatcher-type": ("flex", "alltoall"),
        "moe-flex-dispatcher-backend": ("hybridep",),
        "cuda-graph-impl": ("local",),
        "normalization": ("RMSNorm",),
        "position-embedding-type": ("rope",),
        "moe-layer-freq": ("2", "([0]*3+[1]*29)"),
        "pipeline-model-parallel-layout": ("Et*8|t*8|t*8|t*8L",),
    }
    lines: list[str] = []
    for more in (
        "--bf16",
        "--fp16 --use-distributed-optimizer --fp8-format hybrid",
        "--bf16 --use-megatron-fsdp --overlap-grad-reduce",
        "--bf16 --num-experts 8 --moe-router-topk 2 --pipeline-model-parallel-size 4 --recompute-granularity full",
        "--bf16 --multi-latent-attention --use-precision-aware-optimizer --optimizer-cpu-offload",
    ):
        readings = Readings(lambda words: read_training("megatron", words), f"{GPT} {more}")
        keys = [(key, words.get(key, ("2", "8"))) for key in sorted(facts["values"]) if key in words or _counts(key)]
        keys += [(key, ("",)) for key in sorted(facts["switches"]) if _counts(key)]
        keys += [(key, ("core_attn", "moe_act")) for key in sorted(facts["lists"])]
        _alone_and_together(readings, keys, seed=more, together=60)
        lines += readings.lines
    return "\n".join(lines)


def _counts(flag: str) -> bool:
    """Whether the reader of Megatron-LM's flags asks for this one: others change nothing."""
    package = Path(engines.__file__).parent / "megatron"
    return any(f'"{flag}"' in path.read_text(encoding="utf-8") for path in package.glob("*.py"))


def torchtitan_readings() -> str:
    words = {
        "optimizer.name": ("Adam", "Muon", "SGD", "Lion"),
        "activation_checkpoint.mode": ("none", "full", "selective", "memory_budget"),
        "activation_checkpoint.selective_ac_option": ("op", "1", "2"),
        "training.dtype": ("bfloat16",),
        "training.mixed_precision_param": ("float32",),
        "parallelism.pipeline_parallel_schedule": tuple(SCHEDULES),
        "parallelism.fsdp_reshard_after_forward": ("always", "never", "default"),
        "optimizer.implementation": ("fused", "foreach", "for-loop", "fused_opt_states_bf16"),
        "float8.recipe_name": ("rowwise", "tensorwise"),
    }
    facts = framework_facts("torchtitan")
    lines: list[str] = []
    for more in (
        "",
        "--parallelism.tensor_parallel_degree 2 --compile.enable",
        "--parallelism.pipeline_parallel_degree 4",
    ):
        start = f"torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b {more}"
        readings = Readings(lambda words: read_training("torchtitan", words), start)
        keys = [(key, words.get(key, ("2", "8", "true"))) for key in sorted(facts["keys"])]
        keys += [(key, ("",)) for key in sorted(facts["switches"])]
        _alone_and_together(readings, keys, seed=more)
        lines += readings.lines
    return "\n".join(lines)


def file_readings(framework: str) -> str:
    """Axolotl, Accelerate and DeepSpeed: keys of their files."""
    axolotl, accelerate, deepspeed = (
        framework_facts(name) for name in ("axolotl_keys", "accelerate", "deepspeed_keys")
    )
    script = f"train.py --model_name_or_path {QWEN} --per_device_train_batch_size 2 --max_length 2048 --bf16"
    lines: list[str] = []

    def read(
        start: str, path: str, wrap: Callable[[dict[str, Any]], Any], keys: Iterable[str], base: Mapping[str, Any]
    ) -> None:
        def reader(words: Sequence[str]) -> Any:
            own, given = words[: len(shlex.split(start))], words[len(shlex.split(start)) :]
            document = {**base, **{given[at]: json.loads(given[at + 1]) for at in range(0, len(given), 2)}}
            Path(path).write_text(json.dumps(wrap(document)), encoding="utf-8")
            return read_training(framework, own, gpus=8)

        readings = Readings(reader, start)
        values = [
            json.dumps(one) for one in (2, True, False, "auto", 0.5, "full", "cpu", {"device": "cpu"}, ["q_proj"])
        ]
        own = {
            "rl": ("dpo", "grpo", "orpo", "kto", "x"),
            "adapter": ("qlora", "dora"),
            "attn_implementation": ("eager", "flash_attention_2"),
            "optimizer": ("adamw_bnb_8bit", "lion"),
            "fsdp_sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"),
            "gradient_checkpointing": ("unsloth", "offload"),
            "mixed_precision": ("fp16", "fp8"),
            "fsdp": ("full_shard offload",),
        }
        _alone_and_together(
            readings,
            [(key, (*(json.dumps(one) for one in own.get(key, ())), *values)) for key in sorted(keys)],
            seed=start,
            spelled="{}",
            together=120,
        )
        lines.extend(readings.lines)

    if framework == "axolotl":
        plain = {"base_model": QWEN, "sequence_len": 2048, "micro_batch_size": 2}
        counted = [key for key in axolotl["keys"] if _named_in("axolotl", key)]
        for more in (
            {},
            {"adapter": "lora", "lora_r": 8},
            {"rl": "grpo", "trl": {"use_vllm": True, "vllm_mode": "colocate", "beta": 0.1}},
        ):
            read("axolotl train a.yml", "a.yml", dict, counted, {**plain, **more})
    elif framework == "accelerate":
        start = f"accelerate launch --config_file a.yml {script}"
        for part, kind in (("fsdp_config", "FSDP"), ("deepspeed_config", "DEEPSPEED"), ("parallelism_config", "FSDP")):
            keys = accelerate[part.removesuffix("_config")]
            read(
                start,
                "a.yml",
                lambda found, part=part, kind=kind: {"distributed_type": kind, "num_processes": 8, part: found},
                keys,
                {},
            )
        read(
            start, "a.yml", lambda found: {"num_processes": 8, **found}, accelerate["top"], {"distributed_type": "FSDP"}
        )
    else:
        start = f"deepspeed --num_gpus 8 {script.removesuffix(' --bf16')} --deepspeed d.json"
        for stage in (1, 2, 3):
            read(
                start,
                "d.json",
                lambda found: {"zero_optimization": found},
                deepspeed["zero_optimization"],
                {"stage": stage},
            )
        read(start, "d.json", dict, deepspeed["top"], {"zero_optimization": {"stage": 2}})
    return "\n".join(lines)


def _named_in(package: str, key: str) -> bool:
    folder = Path(engines.__file__).parent / package
    return any(f'"{key}"' in path.read_text(encoding="utf-8") for path in folder.glob("*.py"))


#: Serving engine → the plain commands.
SERVED = {
    "vllm": (
        "vllm serve org/model",
        "vllm serve org/model --tensor-parallel-size 4 --data-parallel-size 2 --enable-expert-parallel",
    ),
    "sglang": (
        "sglang serve --model-path org/model",
        "python -m sglang.launch_server --model-path org/model --tp 4 --dp-size 2",
    ),
    "tensorrt-llm": ("trtllm-serve org/model", "trtllm-serve org/model --tp_size 4 --ep_size 2"),
    "llama.cpp": ("llama-server -m model.gguf", "llama-server -hf org/model:Q4_K_M -ngl 20 --parallel 2"),
    "transformers-serve": ("transformers serve org/model",),
}
SERVING_WORDS = ("2", "8", "true", "fp8", "auto", "0.5", '{"method": "mtp", "num_speculative_tokens": 3}', "q8_0")


def serving_readings(engine: str) -> str:
    """A serving engine: every flag, and what is written back for what was read."""
    one = engines.get(engine)
    table, plain = one.flags(), list[str]()

    def read(words: Sequence[str]) -> Any:
        found = one.read(words)
        told: dict[str, Any] = {"plan": found.plan, "warnings": sorted(warning.code for warning in found.warnings)}
        try:
            written = one.write(model=found.model, plan=found.plan)
        except InputError as error:
            return {**told, "refused to write": str(error)}
        plain.extend(() if plain else written)
        return {**told, "written": shlex.join(word for word in written if word not in plain)}

    lines: list[str] = []
    for at, start in enumerate(SERVED[engine]):
        plain.clear()
        readings = Readings(read, start)
        names = [
            flag
            for flag in sorted(table.flags)
            if flag not in ("config", "extra-llm-api-options", "extra_llm_api_options")
        ]
        keys = [(flag, SERVING_WORDS if at == 0 else ("2", "")) for flag in names if _matters(read, start, flag)]
        _alone_and_together(readings, keys, seed=start, together=150)
        lines += readings.lines
    return "\n".join(lines)


def _matters(read: Callable[[Sequence[str]], Any], start: str, flag: str) -> bool:
    """Whether a flag changes more than the options that are only kept."""
    words = shlex.split(start)
    plain = dict(flat(read(words)))
    for word in SERVING_WORDS:
        try:
            found = dict(flat(read([*words, f"--{flag}", word])))
        except InputError:
            continue
        changed = {name for name in {*found, *plain} if found.get(name) != plain.get(name)}
        if any(name.startswith("[plan]") and ".extra[" not in name for name in changed):
            return True
    return False


#: Name → what it writes down.
READINGS: dict[str, Callable[[], str]] = {
    **{name: lambda name=name: trainer_readings(name) for name in TRAINERS},  # type: ignore[misc]
    "megatron": megatron_readings,
    "torchtitan": torchtitan_readings,
    **{name: lambda name=name: file_readings(name) for name in ("axolotl", "accelerate", "deepspeed")},  # type: ignore[misc]
    **{name: lambda name=name: serving_readings(name) for name in SERVED},  # type: ignore[misc]
}
