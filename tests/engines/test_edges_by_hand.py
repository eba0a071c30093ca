"""Edges of small rules: verl's batches and companions, words of a command, slots of adapters, what llama.cpp leaves behind.

verl/trainer/config/ppo_trainer.yaml; vllm/lora/layers (A whole, B cut with columns); tools of the command line.
"""

from __future__ import annotations

from typing import Any

import pytest

from trilemma.engines.launch import check_model_word, config_overrides, share_of_card, take_apart
from trilemma.engines.llama_cpp.remedies import changes
from trilemma.engines.training import TrainingCommand, read_training
from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.memory.adapter_slots import AdapterSlots, SlotBytes
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Offload, Plan, Pool, ServeOptions

QWEN = "Qwen/Qwen2.5-7B-Instruct"


def verl(words: str = "") -> TrainingCommand:
    base = f"python -m verl.trainer.main_ppo actor_rollout_ref.model.path={QWEN} trainer.n_gpus_per_node=8 trainer.nnodes=1"
    return read_training("verl", f"{base} data.max_prompt_length=512 data.max_response_length=1536 {words}".split())


def at(value: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        value = value[int(name)] if name.isdigit() else getattr(value, name)
    return value


MINI = "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=1"
VERL: list[tuple[str, dict[str, Any]]] = [
    (f"{MINI} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
     {"gpus": 8, "plan.micro_batch": 4, "workload.global_batch": 64, "workload.seq": 2048, "plan.zero": 3,
      "plan.flat_parameters": True, "plan.attention": "flash", "workload.method": "full"}),
    # Eight sequences on each of eight ranks: three do not divide them, two do.
    (f"{MINI} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3", {"plan.micro_batch": 2,
     "workload.global_batch": 64}),
    (f"{MINI} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=100", {"plan.micro_batch": 8}),
    (f"{MINI.replace('n=1', 'n=4')} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
     {"workload.global_batch": 256, "plan.micro_batch": 4}),
    (f"{MINI} actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192",
     {"plan.micro_batch": 4}),
    (f"{MINI} actor_rollout_ref.actor.strategy=fsdp2", {"plan.flat_parameters": False}),
    (f"{MINI} actor_rollout_ref.model.lora_rank=16", {"workload.method": "lora", "workload.rank": 16}),
    (f"{MINI} actor_rollout_ref.actor.fsdp_config.offload_policy=True", {"plan.offload": Offload(optimizer=1.0,
     weights=1.0)}),
    (f"{MINI} actor_rollout_ref.rollout.gpu_memory_utilization=0.4", {"plan.companions.-1.share": 0.4}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), VERL)
def test_a_key_of_verl(words: str, expected: dict[str, Any]) -> None:
    found = verl(words)
    last = expected.pop("plan.companions.-1.share", None) if "plan.companions.-1.share" in expected else None
    assert {name: at(found, name) for name in expected} == expected
    assert last is None or found.plan.companions[-1].share == last


def companions(words: str) -> list[str]:
    return [one.name for one in verl(f"{MINI} {words}").plan.companions]


def test_what_shares_the_cards_of_verl() -> None:
    critic, engine = "critic", "generation engine"
    grpo = "algorithm.adv_estimator=grpo"
    assert companions("algorithm.adv_estimator=gae") == [critic, engine]
    assert companions(grpo) == [engine]
    assert companions(f"{grpo} actor_rollout_ref.actor.use_kl_loss=True") == ["reference model", engine]
    assert companions(f"{grpo} algorithm.use_kl_in_reward=True") == ["reference model", engine]
    assert companions(f"{grpo} actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.model.lora_rank=8") == [
        engine
    ]
    for share in ("0", "1"):
        with pytest.raises(InputError, match=f"{share} is not a share of the card's memory"):
            verl(f"{MINI} actor_rollout_ref.rollout.gpu_memory_utilization={share}")
    with pytest.raises(InputError, match="strategy=megatron is not read"):
        verl(f"{MINI} actor_rollout_ref.actor.strategy=megatron")


def test_a_command_taken_apart() -> None:
    found = take_apart(["A=1", "B=x=y", "vllm/vllm-openai:v0.19.0", "serve", "m/x", "--a"], engine="vllm")
    assert (found.environment, found.image, found.words) == (
        {"A": "1", "B": "x=y"},
        "vllm/vllm-openai:v0.19.0",
        ["m/x", "--a"],
    )
    assert take_apart(["vllm/vllm-openai:v0.19.0", "--a"], engine="vllm").words == ["--a"]
    assert take_apart(["vllm/vllm-openai:v0.19.0"], engine="vllm").words == []
    assert take_apart(["vllm", "serve", "m/x"], engine="vllm").words == ["m/x"]
    assert take_apart(["m/x", "--a"], engine="vllm").image is None


@pytest.mark.parametrize(("extra", "found"), [
    ({}, {}), ({"hf-overrides": {"a": 1}}, {"a": 1}), ({"json-model-override-args": '{"b": 2}'}, {"b": 2}),
    ({"hf-overrides": 3}, {}),
])  # fmt: skip
def test_changes_to_a_configuration(extra: dict[str, Any], found: dict[str, Any]) -> None:
    assert config_overrides(extra) == found


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_changes_that_are_no_object(text: str) -> None:
    with pytest.raises(InputError, match="is not a JSON object"):
        config_overrides({"json-model-override-args": text})


@pytest.mark.parametrize(("value", "remedy"), [
    (0.0, "such as 0.9"), (-0.5, "such as 0.9"), (1.0001, "give 0.010001"), (90.0, "give 0.9"), (100.0, "give 1"),
    (100.5, "such as 0.9"),
])  # fmt: skip
def test_shares_that_are_none(value: float, remedy: str) -> None:
    with pytest.raises(InputError, match=remedy):
        share_of_card(value, shown="--x")
    assert (share_of_card(1.0, shown="--x"), share_of_card(1e-9, shown="--x")) == (1.0, 1e-9)


def test_models_that_are_no_word() -> None:
    for word in ("", "-x", "a\nb", "a\0b", "a\rb", "x" * 4097):
        with pytest.raises(InputError, match="cannot be a model name"):
            check_model_word(word)
    assert check_model_word("x" * 4096) == "x" * 4096


#: Llama 3.1 8B: (inputs, outputs) of each matrix of a layer, and whether its columns or its rows are cut.
MATRICES = [(4096, 4096, "column"), (4096, 1024, "column"), (4096, 1024, "column"), (4096, 4096, "row"),
            (4096, 14336, "column"), (4096, 14336, "column"), (14336, 4096, "row")]  # fmt: skip


@pytest.mark.parametrize(("tp", "sharded"), [(1, False), (4, False), (4, True), (1, True)])
def test_slots_of_adapters(tp: int, sharded: bool) -> None:
    slots = AdapterSlots(slots=3, rank=16, format=catalogue.get("bf16"), sharded=sharded)
    bytes_, half = SlotBytes(load_model("llama-3.1-8b"), slots).on_rank(
        start=0, stop=32, first=True, last=True, tp=tp, ep=1, expert_tp=tp
    )
    each = 0.0
    for inputs, outputs, cut in MATRICES:
        a, b = 16 * inputs, 16 * outputs
        if cut == "column":
            each += a / (tp if sharded else 1) + b / tp
        else:
            each += a / tp + b / (tp if sharded else 1)
    vocabulary = 2 * 16 * (4096 + 128256)
    assert float(half) == pytest.approx(3 * 2 * vocabulary / 2)
    assert float(bytes_) == pytest.approx(3 * 2 * (32 * each + vocabulary / 2))


def test_slots_of_some_layers_and_targets() -> None:
    model = load_model("llama-3.1-8b")
    slots = AdapterSlots(slots=1, rank=8, format=catalogue.get("bf16"), targets=("q_proj", "v_proj"))
    bytes_, half = SlotBytes(model, slots).on_rank(start=0, stop=2, first=False, last=False, tp=1, ep=1, expert_tp=1)
    assert (float(bytes_), float(half)) == (2 * 2 * 8 * (2 * 4096 + 4096 + 1024), 0)


def test_experts_have_slots_where_the_engine_gives_them_some() -> None:
    model = load_model("qwen3-30b-a3b")
    plain, every = (
        float(SlotBytes(model, AdapterSlots(slots=1, rank=8, format=catalogue.get("bf16"), experts=experts)).on_rank(
            start=0, stop=48, first=True, last=True, tp=1, ep=1, expert_tp=1)[0]) for experts in (False, True)
    )  # fmt: skip
    assert every - plain == pytest.approx(2 * 48 * 128 * 8 * 3 * (2048 + 768), rel=1e-6)


def offers(model: str, most: int, **extra: Any) -> list[tuple[str, ServeOptions, float, str]]:
    """Where at least ``most`` layers or experts have to leave the card."""
    options = ServeOptions(context=4096, extra=extra)
    plan = Plan(engine=EngineRef(name="llama.cpp"), pools=(Pool(layout=Layout(), options=options),))
    depth = len(load_model(model).layers)

    def fits(one: ServeOptions) -> bool:
        left = int(one.extra.get("n-cpu-moe") or 0) + depth + 1 - int(one.extra.get("n-gpu-layers", depth + 1))
        return left >= most

    return changes(plan, load_model(model), fits)


def test_what_llama_cpp_offers_to_leave_behind() -> None:
    names = [one[0] for one in offers("llama-3.1-8b", 5)]
    assert names == ["K and V cached in Q8_0", "5 of 33 layers in the memory of the host"]
    mixture = offers("qwen3-30b-a3b", 7)
    assert [one[0] for one in mixture][1:] == [
        "experts of 7 of 48 layers in the memory of the host", "7 of 49 layers in the memory of the host",
    ]  # fmt: skip
    assert [one[2] for one in mixture] == sorted(one[2] for one in mixture)
    assert mixture[1][1].extra["n-cpu-moe"] == 7
    assert mixture[2][1].extra["n-gpu-layers"] == "42"
    assert len(offers("qwen3-30b-a3b", 7, **{"cpu-moe": True})) == 2
    cache = mixture[0][1]
    assert (cache.kv_dtype, cache.extra["flash-attn"]) == ("q8_0", "on")
    assert "cache-type-v" not in offers("llama-3.1-8b", 5, **{"cache-type-v": "f16", "keep": 1})[0][1].extra
    assert offers("llama-3.1-8b", 5, keep=1)[1][1].extra["keep"] == 1
