"""Properties of training memory: sharding, layouts, recompute, schedules, one formula for scalars and tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_plans import STATE, gpt, line_bytes, memory, model, state_bytes

from trilemma.errors import InputError
from trilemma.memory.pipeline_stages import in_flight, place_layers
from trilemma.models.parameters import count
from trilemma.plans import Offload, Recompute, optimizer, recipe
from trilemma.quantities import GIB

LLAMA = "llama-3.1-8b"
MIXTRAL = "mixtral-8x7b"
DEEPSEEK = "deepseek-v2-lite"
POWERS = (1, 2, 4, 8)


def elements(name: str) -> int:
    return count(model(name)).total


@pytest.mark.parametrize(
    ("name", "bytes_per_parameter"),
    [
        ("bf16", 18), ("bf16-bf16-grads", 16), ("amp", 16), ("fsdp", 16), ("zero-bf16", 16), ("fp32", 16),
    ],
)  # fmt: skip
def test_state_bytes_per_parameter(name: str, bytes_per_parameter: int) -> None:
    found = memory("llama-2-7b", recipe=recipe(name), zero=0, implementation="deepspeed")
    assert state_bytes(found) == pytest.approx(bytes_per_parameter * elements("llama-2-7b"), rel=1e-6)


def test_pure_bf16_is_eight_bytes_with_gradients_at_the_end() -> None:
    found = memory(
        "llama-2-7b", recipe=recipe("pure-bf16"), optimizer=optimizer("adamw-like-weights"), zero=0,
        implementation="deepspeed", seq=128,
    )  # fmt: skip
    assert state_bytes(found) == pytest.approx(8 * elements("llama-2-7b"), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("adamw", 8, 8), ("adamw-8bit", 2.0, 2.4), ("adamw-4bit", 1.0, 1.6), ("adamw-bf16-moments", 4, 4), ("lion", 4, 4),
     ("sgd", 0, 0), ("sgd-momentum", 4, 4), ("muon", 4, 4.4), ("adafactor", 0, 0.01)],
)  # fmt: skip
def test_moments_by_optimizer(name: str, least: float, most: float) -> None:
    found = memory("llama-2-7b", optimizer=optimizer(name), zero=0)
    each = line_bytes(found, "optimizer") / elements("llama-2-7b")
    assert least * 0.999 <= each <= most * 1.02


def test_megatron_distributed_optimizer_is_six_plus_twelve_over_dp() -> None:
    for dp in (1, 4, 16):
        found = memory("llama-2-7b", dp=dp, zero=1)
        assert state_bytes(found) == pytest.approx((6 + 12 / dp) * elements("llama-2-7b"), rel=1e-3)


@pytest.mark.parametrize("name", [LLAMA, MIXTRAL, DEEPSEEK])
@given(power=st.integers(0, 7))
@settings(max_examples=8)
def test_zero_3_state_falls_as_one_over_n(name: str, power: int) -> None:
    one = memory(name, zero=3, implementation="torchtitan", recipe=recipe("fsdp"), global_batch=256)
    many = memory(name, zero=3, implementation="torchtitan", recipe=recipe("fsdp"), dp=2**power, global_batch=256)
    assert line_bytes(many, "weights", "optimizer") * 2**power == pytest.approx(line_bytes(one, "weights", "optimizer"))


def test_each_zero_stage_shards_one_line_more() -> None:
    found = [memory(LLAMA, dp=8, zero=zero) for zero in (0, 1, 2, 3)]
    lines = [{name: line_bytes(one, name) for name in STATE} for one in found]
    for name, from_stage in (("optimizer", 1), ("master_weights", 1), ("gradients", 2), ("weights", 3)):
        for zero in range(4):
            share = 8 if zero >= from_stage else 1
            assert lines[zero][name] * share == pytest.approx(lines[0][name])


def test_hybrid_sharding_divides_by_the_group() -> None:
    whole = memory(LLAMA, dp=64, zero=3, implementation="torchtitan")
    inside = memory(LLAMA, dp=64, zero=3, shard_group=8, implementation="torchtitan")
    assert line_bytes(inside, "weights") == pytest.approx(8 * line_bytes(whole, "weights"))


def test_experts_shard_over_the_ranks_that_hold_the_same() -> None:
    # 64 ranks, experts on 8 of them: 8 copies; the rest of the model has 64.
    apart = memory(MIXTRAL, dp=64, ep=8, zero=1, global_batch=64)
    dense = memory(MIXTRAL, dp=64, zero=1, global_batch=64)
    what = model(MIXTRAL)
    experts = sum(tensor.elements for tensor in what.tensors if tensor.experts)
    others = elements(MIXTRAL) - experts
    assert line_bytes(apart, "master_weights") == pytest.approx(4 * (experts / 8 / 8 + others / 64), rel=1e-6)
    assert line_bytes(dense, "master_weights") == pytest.approx(4 * (experts + others) / 64, rel=1e-6)
    assert line_bytes(apart, "weights") == pytest.approx(2 * (experts / 8 + others), rel=1e-6)


@pytest.mark.parametrize("implementation", ["megatron", "torchtitan", "transformers", "deepspeed"])
@pytest.mark.parametrize("name", [LLAMA, MIXTRAL, DEEPSEEK, "qwen3-30b-a3b", "gpt2"])
@given(
    pp=st.sampled_from((1, 2, 4)), dp=st.sampled_from((1, 2, 16)), micro_batch=st.sampled_from((1, 2, 8)),
    sp=st.booleans(), zero=st.integers(0, 3), mode=st.sampled_from(("none", "selective", "op", "full")),
    seq=st.sampled_from((512, 4096, 32768)), cp=st.sampled_from((1, 2)),
)  # fmt: skip
@settings(max_examples=25)
def test_more_tensor_parallelism_never_raises_state_and_activations(
    name: str,
    implementation: str,
    pp: int,
    dp: int,
    micro_batch: int,
    sp: bool,
    zero: int,
    mode: str,
    seq: int,
    cp: int,
) -> None:
    found = memory(
        name,
        tp=np.array([1, 2, 4]),
        pp=pp,
        dp=dp,
        cp=cp,
        micro_batch=micro_batch,
        sp=sp,
        zero=zero,
        seq=seq,
        recompute=Recompute(mode=mode),
        implementation=implementation,
        global_batch=dp * micro_batch * 8,  # type: ignore[arg-type]
    )
    sums = found.categories_bytes
    assert np.all(np.diff(sums) <= 1e-9 * sums[:-1])
    if pp == 1 and implementation in ("megatron", "deepspeed"):  # one stage, gradients that persist: one moment
        shown = line_bytes(found, *STATE, "activations")
        assert np.all(np.diff(shown) <= 1e-9 * shown[:-1])


@pytest.mark.parametrize("implementation", ["megatron", "torchtitan", "transformers", "litgpt"])
def test_lines_sum_to_the_totals(implementation: str) -> None:
    found = memory(MIXTRAL, pp=2, dp=4, zero=3, implementation=implementation)
    inside = sum(line.bytes for line in found.ledger if line.budget == "inside")
    assert found.allocated_bytes == inside
    assert found.reserved_bytes == pytest.approx(inside + line_bytes(found, "fragmentation"))
    assert found.device_bytes == pytest.approx(sum(line.bytes for line in found.ledger))
    assert all(line.formula for line in found.ledger)
    assert found.allocated.low < found.allocated.value < found.allocated.high
    assert found.reserved.value > found.allocated.value


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "gpipe"])
def test_a_table_of_plans_is_its_plans_one_by_one(schedule: str) -> None:
    rng = np.random.default_rng(0)
    rows = [
        (tp, pp, vpp, dp, cp, mb)
        for tp in POWERS for pp in (1, 2, 3, 4, 8) for vpp in (1, 2, 4) for dp in (1, 8) for cp in (1, 2) for mb in (1, 4)
        if pp * vpp <= 32
    ]  # fmt: skip
    columns = np.array(rows)
    tp, pp, vpp, dp, cp, mb = columns.T
    table = memory(
        LLAMA, tp=tp, pp=pp, vpp=vpp, dp=dp, cp=cp, micro_batch=mb, schedule=schedule, global_batch=64, zero=1
    )
    assert not table.ranks
    for index in rng.choice(len(rows), 25, replace=False):
        tp1, pp1, vpp1, dp1, cp1, mb1 = rows[index]
        alone = memory(
            LLAMA, tp=tp1, pp=pp1, vpp=vpp1, dp=dp1, cp=cp1, micro_batch=mb1, schedule=schedule, global_batch=64, zero=1
        )
        assert alone.reserved_bytes == pytest.approx(table.reserved_bytes[index], rel=1e-12)
        assert alone.allocated_bytes == pytest.approx(table.allocated_bytes[index], rel=1e-12)
        worst = max(rank.ledger.total("inside") + line_bytes_of(rank, "fragmentation") for rank in alone.ranks)
        assert worst == pytest.approx(alone.reserved_bytes)


def line_bytes_of(rank: object, name: str) -> float:
    line = rank.ledger.get(name)  # type: ignore[attr-defined]
    return 0.0 if line is None else float(line.bytes)


def test_every_stage_is_listed_and_holds_its_layers() -> None:
    found = memory("llama-3.1-70b", pp=8, tp=4, dp=2, global_batch=128)
    assert [rank.stage for rank in found.ranks] == list(range(8))
    assert sum(rank.layers for rank in found.ranks) == 80
    assert [rank.in_flight for rank in found.ranks] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert found.ranks[-1].ledger.get("logits") is not None
    assert found.ranks[1].ledger.get("logits") is None


def test_tied_embeddings_stand_on_both_ends_of_a_pipeline() -> None:
    small = gpt("small", layers=8, hidden=512, heads=8)
    one, two = memory(small, zero=0), memory(small, zero=0, pp=2)
    table = 2 * 512 * 51_200
    both = sum(rank.ledger["weights"].bytes for rank in two.ranks)
    assert both == pytest.approx(one.ledger["weights"].bytes + table, rel=1e-6)


def test_layers_need_not_divide_the_stages() -> None:
    found = memory("llama-3.1-70b", pp=7, vpp=3, schedule="interleaved", tp=8, global_batch=64)
    assert sum(rank.layers for rank in found.ranks) == 80
    stated = memory("llama-3.1-70b", pp=2, pipeline_layers=(39, 41), tp=8)
    assert [rank.layers for rank in stated.ranks] == [39, 41]


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m", "held"),
    [
        ("1f1b", 4, 1, 8, [4, 3, 2, 1]), ("1f1b", 4, 1, 2, [2, 2, 2, 1]), ("gpipe", 4, 1, 8, [8, 8, 8, 8]),
        ("interleaved", 4, 2, 8, [5.5, 4.5, 3.5, 2.5]), ("zb-h1", 4, 1, 8, [4, 3, 2, 1]),
        ("zb-h2", 4, 1, 8, [7, 5, 3, 1]), ("zbv", 4, 1, 8, [4, 4, 4, 4]), ("dualpipev", 4, 1, 8, [5, 5, 5, 5]),
    ],
)  # fmt: skip
def test_micro_batches_in_flight(schedule: str, p: int, v: int, m: int, held: list[float]) -> None:
    assert in_flight(schedule, stage=np.arange(p), pp=p, vpp=v, micro_batches=m).tolist() == held


@given(p=st.integers(2, 64), v=st.integers(1, 8))
def test_interleaving_costs_what_korthikanti_says(p: int, v: int) -> None:
    held = in_flight("interleaved", stage=0, pp=p, vpp=v, micro_batches=10**6)
    assert held == pytest.approx(p * (1 + (p - 1) / (p * v)))


def test_v_shaped_schedules_hold_both_ends_on_one_stage() -> None:
    found = place_layers([0] * 16, 1, pp=4, vpp=1, schedule="zbv")
    assert found.first.tolist() == found.last.tolist() == [1, 0, 0, 0]
    both = place_layers([0] * 16, 1, pp=4, vpp=1, schedule="dualpipe")
    assert both.counts[:, 0].tolist() == [8, 8, 8, 8]


def test_ends_of_the_model_may_stand_alone() -> None:
    found = place_layers([0] * 126, 1, pp=16, vpp=8, schedule="interleaved")
    assert found.counts[:, 0].tolist() == [7, *[8] * 14, 7]
    assert place_layers([0] * 3, 1, pp=4, vpp=1, schedule="1f1b").counts[:, 0].tolist() == [1, 1, 1, 0]


def test_recompute_keeps_less_the_more_it_repeats() -> None:
    modes = [Recompute(), Recompute(mode="selective", parts=("mlp",)), Recompute(mode="op"), Recompute(mode="full")]
    found = [memory(LLAMA, dp=8, recompute=mode, implementation="torchtitan", seq=8192) for mode in modes]
    kept = [line_bytes(one, "activations") for one in found]
    assert kept[0] > max(kept[1], kept[2]) >= min(kept[1], kept[2]) > kept[3] > 0
    # Full recompute keeps two bytes a token, hidden value and layer, and the last norm.
    assert kept[3] == pytest.approx(32 * 2 * 8192 * 4096, rel=0.1)


def test_op_level_recompute_is_fifteen_and_a_half_sbh() -> None:
    found = memory(LLAMA, dp=8, recompute=Recompute(mode="op"), implementation="torchtitan", seq=8192)
    sbh = 8192 * 4096
    ends = 8192 * (8 + 4 * 4096 + 4)
    assert line_bytes(found, "activations") - ends == pytest.approx(32 * (15.5 * sbh + 4 * 32 * 8192), rel=1e-6)


def test_partial_full_recompute_lies_between() -> None:
    kept = [
        line_bytes(memory(LLAMA, recompute=Recompute(mode="full", layers=layers)), "activations")
        for layers in (0, 8, 32)
    ]
    none = line_bytes(memory(LLAMA), "activations")
    assert none == pytest.approx(kept[0])
    assert kept[0] > kept[1] > kept[2]


def test_fused_megatron_layer_of_llama_3_8b_is_34_sbh() -> None:
    found = memory(LLAMA, seq=4096)
    sbh = 4096 * 4096
    stats = 4096 * (4 * 32 + 2 * 4)
    ends = 4096 * (8 + 4 * 4096 + 4)
    assert line_bytes(found, "activations") - ends == pytest.approx(32 * (34 * sbh + stats), rel=1e-6)


def test_context_parallelism_divides_activations_and_logits() -> None:
    one, four = memory(LLAMA, cp=1, seq=32768), memory(LLAMA, cp=4, seq=32768)
    for name in ("activations", "logits"):
        assert line_bytes(one, name) == pytest.approx(4 * line_bytes(four, name))


def test_imbalance_raises_what_the_fullest_expert_rank_keeps() -> None:
    even, skewed = memory(MIXTRAL, dp=8, ep=8), memory(MIXTRAL, dp=8, ep=8, imbalance=1.5)
    assert line_bytes(skewed, "activations") > line_bytes(even, "activations")
    assert line_bytes(skewed, "weights") == line_bytes(even, "weights")


@pytest.mark.parametrize("name", ["fp8", "fp8-block", "mxfp8", "nvfp4"])
def test_low_precision_training_adds_copies_of_weights(name: str) -> None:
    plain, narrow = memory(LLAMA), memory(LLAMA, recipe=recipe(name))
    assert line_bytes(narrow, "weights") > 1.4 * line_bytes(plain, "weights")
    assert line_bytes(narrow, "activations") < line_bytes(plain, "activations")
    assert line_bytes(narrow, "master_weights") == line_bytes(plain, "master_weights")


def test_adapters_leave_the_base_frozen() -> None:
    work = {"method": "lora", "rank": 16, "targets": ("attention.q", "attention.v")}
    found = memory(LLAMA, work=work, implementation="transformers", recipe=recipe("fsdp"), zero=0)
    adapters = 32 * 16 * (2 * 4096 + 4096 + 1024)
    assert line_bytes(found, "adapter") == 4 * adapters
    assert line_bytes(found, "optimizer") == 8 * adapters
    assert line_bytes(found, "weights") == pytest.approx(2 * elements(LLAMA))
    full = memory(LLAMA, implementation="transformers", recipe=recipe("fsdp"), zero=0)
    assert line_bytes(found, "activations") < line_bytes(full, "activations")
    dora = memory(LLAMA, work={**work, "method": "dora"}, implementation="transformers", recipe=recipe("fsdp"), zero=0)
    assert line_bytes(dora, "adapter") == 4 * (adapters + 32 * (4096 + 1024))
    assert line_bytes(dora, "activations") > line_bytes(found, "activations")


@pytest.mark.parametrize(("held", "each"), [("amp", 54.1), ("pure-bf16", 45.5)])
def test_adapters_keep_a_narrow_copy_of_their_input_or_the_input_itself(held: str, each: float) -> None:
    """Counted with saved-tensor hooks on Llama-3.1-8B, rank 16 on every linear layer, under autocast and with BF16 adapters."""
    work = {"method": "lora", "rank": 16}
    found = memory(
        LLAMA, seq=4096, work=work, implementation="transformers", recipe=recipe(held), zero=0, attention="sdpa"
    )
    assert line_bytes(found, "activations") / (4096 * 4096 * 32) == pytest.approx(each, rel=0.02)


def test_frozen_inputs_are_not_kept_beside_copies() -> None:
    """Of a model of another family: each linear layer's own 16-bit copy comes in place of inputs that several share."""
    work, name = {"method": "lora", "rank": 16}, "qwen2.5-7b"
    common = {"seq": 2048, "work": work, "implementation": "transformers", "zero": 0, "attention": "sdpa"}
    wide, narrow = (memory(name, recipe=recipe(held), **common) for held in ("amp", "pure-bf16"))  # type: ignore[arg-type]
    hidden, inner, layers = 3584, 18944, 28
    copies, shared = (
        5 * hidden + inner,
        2 * hidden + inner,
    )  # q, k, v, gate, up and down; the attention output stays anyway
    expected = 2 * 2048 * layers * (copies + hidden - shared)
    assert line_bytes(wide, "activations") - line_bytes(narrow, "activations") == pytest.approx(expected, rel=0.01)


def test_quantised_base_of_a_7b_fits_a_24_gb_card() -> None:
    work = {"method": "qlora", "rank": 16}
    found = memory(
        "llama-2-7b", seq=2048, work=work, implementation="transformers", recipe=recipe("fsdp"), zero=0,
        recompute=Recompute(mode="full"),
    )  # fmt: skip
    linear = sum(one.elements for one in model("llama-2-7b").tensors if one.quantizable and one.part == "layers")
    rest = elements("llama-2-7b") - linear
    assert line_bytes(found, "weights") == pytest.approx(4.127 / 8 * linear + 2 * rest, rel=0.05)
    assert found.device_bytes < 20 * GIB


def test_offload_moves_lines_to_the_host() -> None:
    plain = memory(LLAMA, dp=2, implementation="deepspeed", zero=3, recipe=recipe("zero-bf16"), global_batch=8)
    away = memory(
        LLAMA, dp=2, implementation="deepspeed", zero=3, recipe=recipe("zero-bf16"), global_batch=8,
        offload=Offload(optimizer=1.0, activations=0.5),
    )  # fmt: skip
    assert line_bytes(away, "optimizer", "master_weights") == 0
    assert line_bytes(away, "activations") == pytest.approx(line_bytes(plain, "activations") / 2)
    moved = line_bytes(plain, "optimizer", "master_weights", "gradients") + line_bytes(plain, "activations") / 2
    # DeepSpeed's processor updates from FP32 gradients beside the 16-bit ones (stage3.py, initialize_optimizer_states).
    assert away.host_bytes == pytest.approx(moved + 2 * line_bytes(plain, "gradients"))
    assert away.moved_bytes["activations"] == pytest.approx(4 * line_bytes(plain, "activations"), rel=0.01)
    assert away.moved_bytes["optimizer"] == pytest.approx(line_bytes(plain, "gradients", "weights"))
    assert line_bytes(away, "offload_buffers") > 0


def test_loss_full_chunked_fused() -> None:
    found = {
        loss: line_bytes(memory(LLAMA, implementation="transformers", zero=3, seq=8192, loss=loss), "logits")
        for loss in ("full", "chunked", "fused")
    }
    assert found["full"] == 12 * 8192 * 128_256
    assert found["full"] > found["chunked"] > found["fused"]


def test_resume_needs_a_copy_where_checkpoints_load_whole() -> None:
    whole = memory(LLAMA, implementation="deepspeed", zero=1, dp=4)
    assert whole.resume_peak_bytes == pytest.approx(
        line_bytes(whole, "weights") + 2 * line_bytes(whole, "master_weights", "optimizer")
    )
    inplace = memory(LLAMA, zero=1, dp=4)
    assert inplace.resume_peak_bytes == pytest.approx(line_bytes(inplace, "weights", "master_weights", "optimizer"))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"pp": 35}, "--pp 35 needs 35 pieces"),
        ({"pp": 8, "vpp": 8}, "pieces of 32 layers"),
        ({"pp": 2, "pipeline_layers": (16, 15)}, "are not 2 stages"),
        ({"work": {"method": "lora", "rank": 0}}, "`rank` 0"),
        ({"work": {"method": "lora", "rank": 8, "targets": ("nothing",)}}, "name no layer"),
        ({"micro_batch": 0}, "`micro_batch` 0"),
        ({"zero": 4}, "`zero` 4"),
        ({"imbalance": math.nan}, "imbalance nan"),
        ({"schedule": "zigzag"}, "schedule 'zigzag'"),
        ({"seq": 0}, "`seq` 0"),
    ],
)  # fmt: skip
def test_bad_plans_are_input_errors(what: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        memory(LLAMA, **what)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"mode": "some"}, {"mode": "selective", "parts": ("attic",)}, {"layers": -1}])
def test_bad_recompute_is_an_input_error(bad: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Recompute(**bad)  # type: ignore[arg-type]


def test_hybrid_and_latent_models_have_activations() -> None:
    for name in ("nemotron-3-nano-30b-a3b", "deepseek-v3", "qwen3-next-80b-a3b", "gemma-3-27b", "gpt-oss-20b"):
        found = memory(name, ep=8, dp=8, tp=1, global_batch=8)
        assert line_bytes(found, "activations") > GIB / 8
        assert np.isfinite(found.reserved_bytes)
