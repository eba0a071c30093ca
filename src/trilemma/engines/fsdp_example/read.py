"""A command of AWS's FSDP example (its own ``train.py`` over Hugging Face models) to a training plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.commands.launchers import split_launch
from trilemma.commands.option_words import Options, read_options
from trilemma.engines.training import TrainingCommand, framework_facts, unknown_warning
from trilemma.engines.transformers.run import Sharding, TrainerRun, assemble
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.models.architecture import Model
from trilemma.models.read import model_from_config


def read(words: Sequence[str], *, gpus: int | None = None) -> TrainingCommand:
    """The plan of a ``train.py`` command of the example. Raises `InputError`."""
    launch = split_launch(words)
    facts = framework_facts("fsdp_example")
    known = facts["flags"]["values"]
    options = read_options(launch.words, switches=(), values=known)
    warnings = list(unknown_warning(options.unknown, (f"--{name}" for name in known), where=facts["shown"]))
    stated, trained = options.whole("max_context_width"), int(facts["sequence_tokens"])
    if stated is not None and stated != trained:
        text = (
            f"--max_context_width {stated} does not reach the loader of this example, which cuts sequences of {trained:,}"
            " tokens; judged with these"
        )
        warnings.append(PlanWarning(code="assumed-length", message=text))
    strategy = options.text("sharding_strategy") or "full"
    if strategy not in ("full", "hybrid"):
        raise InputError(f"--sharding_strategy {shorten(strategy)} is not known; use full or hybrid")
    model = _model(options, facts)
    moved = 1.0 if _flag(options, facts, "cpu_offload") else 0.0
    run = TrainerRun(
        framework="transformers",
        model=model.name,
        architecture=model,
        micro_batch=_count(options, facts, "train_batch_size"),
        seq=trained,
        sharding=Sharding(
            by="fsdp", version=2, zero=3, hybrid=strategy == "hybrid", offload_optimizer=moved, offload_weights=moved
        ),
        compute="bf16" if _flag(options, facts, "bf16") else "fp32",
        checkpointing=_flag(options, facts, "activation_checkpointing"),
        activation_offload=_flag(options, facts, "offload_activations"),
        unknown=options.unknown,
        warnings=warnings,
    )
    return assemble(run, launch, gpus=gpus)


def _count(options: Options, facts: Mapping[str, Any], name: str) -> int:
    return options.whole(name) or int(facts["defaults"][name])


def _flag(options: Options, facts: Mapping[str, Any], name: str) -> bool:
    """A switch that is a number: everything above 0 is on."""
    told = options.whole(name, low=0)
    return bool(facts["defaults"].get(name, 0) if told is None else told)


def _model(options: Options, facts: Mapping[str, Any]) -> Model:
    kind = options.text("model_type") or str(facts["defaults"]["model_type"])
    config = next((value for word, value in facts["configurations"].items() if word in kind), None)
    if config is None:
        raise InputError(f"--model_type {shorten(kind)} is not known; use {', '.join(facts['configurations'])}")
    hidden, heads = _count(options, facts, "hidden_width"), _count(options, facts, "num_heads")
    if hidden % heads:
        raise InputError(f"--num_heads {heads} does not divide --hidden_width {hidden}; use a divisor")
    layers = _count(options, facts, "num_layers")
    neox = config["model_type"] == "gpt_neox"
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if neox else options.whole("num_key_value_heads") or heads,
        "intermediate_size": 4 * hidden if neox else _count(options, facts, "intermediate_size"),
        "vocab_size": _count(options, facts, "vocab_size"),
        "max_position_embeddings": options.whole("max_context_width") or 2048,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return model_from_config({**sizes, **config}, name=f"{kind[:40]}-{layers}x{hidden}", source="flags of the command")
