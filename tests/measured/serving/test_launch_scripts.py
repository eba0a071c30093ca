"""What launch scripts set and rows do not say reaches the question that a row asks."""

from __future__ import annotations

import pytest

from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.figures import predict
from trilemma.measured.serving.speed.launch_scripts import held_passes
from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.tables import Row, UnusableRow
from trilemma.timing.serving_terms import priors

INFERENCEX = "origin=InferenceX; mode=agg"
OVERVIEW = "NVIDIA/TensorRT-LLM@00f37686:docs/source/performance/perf-overview.md"


def question(**cells: str) -> SpeedQuestion:
    row = {
        "model": "qwen3-235b-a22b", "precision_weights": "fp8", "gpu": "b200_sxm", "gpus": "8", "tp": "8", "engine": "sglang",
        "isl": "1024", "osl": "1024", "concurrency_or_batch": "16", "metric": "ttft_ms", "value": "100", "tier": "A",
    }  # fmt: skip
    return read_speed_question(Row(id="r", line=1, cells=row | cells), None)


def test_sglang_of_inferencex_looks_for_requests_every_thirtieth_pass_from_sixteen_on():
    # SemiAnalysisAI/InferenceX dsr1_fp8_b200.sh: SCHEDULER_RECV_INTERVAL=30 if CONC >= 16 else 10
    assert question(notes=INFERENCEX).passes_waited == 14.5
    assert question(notes=INFERENCEX, concurrency_or_batch="15").passes_waited == 4.5
    assert question(notes=INFERENCEX, gpu="h200_sxm").passes_waited == 0
    assert question(notes=INFERENCEX, engine="vllm").passes_waited == 0
    assert question().passes_waited == 0


def test_prompts_that_are_held_back_wait_for_twenty_passes():
    # 70b_fp8_b200_trt_slurm.sh: batch_wait_timeout_iters 20 for 1k/1k where TP < 8
    cells = {"engine": "trtllm", "model": "llama-3.1-70b", "tp": "2", "gpus": "2", "notes": INFERENCEX}
    alone, sixteen = (question(**cells | {"concurrency_or_batch": load}).passes_waited for load in ("1", "16"))
    assert alone == 20
    # measured at TP2 in FP8 against the same prompts before outputs of 8k, which no script holds back: 184 of 9.7 ms at 4
    # requests, 160 of 9.8 at 16
    assert sixteen == pytest.approx(160 / 9.8, rel=0.1)
    assert question(**cells | {"osl": "8192"}).passes_waited == 0
    assert question(**cells | {"tp": "8", "gpus": "8"}).passes_waited == 0
    assert question(**cells | {"model": "gpt-oss-120b"}).passes_waited == 0


def test_a_pass_that_fills_is_not_held_back_longer():
    assert held_passes(20.0, fills=16.0, arriving=0.0) == 20
    assert held_passes(20.0, fills=16.0, arriving=0.1) == pytest.approx(
        20 * 2 / 3
    )  # two more come: half of the window each
    assert held_passes(20.0, fills=16.0, arriving=3.0) == pytest.approx(5 * 8.5 / 16)  # fifteen more have come after 5
    assert held_passes(20.0, fills=1.0, arriving=3.0) == 0


def test_ranks_of_attention_prefill_together():
    cells = {"engine": "trtllm", "model": "gpt-oss-120b", "tp": "1", "dp": "4", "gpus": "4", "notes": INFERENCEX}
    assert question(**cells).passes_waited == 24.5
    assert question(**cells | {"tp": "4", "dp": "1"}).passes_waited == 0


def test_a_request_waits_for_half_of_the_passes_between_two_looks():
    told, plain = (benches_of([question(notes=notes)])[0] for notes in (INFERENCEX, ""))
    factors = dict.fromkeys(priors().terms, 1.0)
    longer = float(predict(told, factors)[0] - predict(plain, factors)[0])
    at_once = benches_of([question(metric="tpot_ms")])[0]
    step = float(predict(at_once, factors)[0])
    assert 0.5 * 14.5 * step < longer <= 14.5 * step * 1.001  # a step is a token's time without the prefills of others


def test_queued_mixtures_of_the_overview_attend_on_each_rank_alone():
    # its llm_options.yml for MoE models: enable_attention_dp: true
    cells = {"engine": "TensorRT-LLM (pytorch)", "concurrency_or_batch": "max load", "metric": "output_tok_s_total"}
    told = question(source_ref=OVERVIEW, **cells)
    assert (told.layout.tp, told.layout.dp, told.layout.ep) == (1, 8, 8)
    assert any("attention of its own" in one for one in told.assumed)
    dense = question(source_ref=OVERVIEW, **cells | {"model": "llama-3.1-70b"})
    assert (dense.layout.tp, dense.layout.dp) == (8, 1)
    assert question(**cells).layout.tp == 8


def test_a_row_tells_whether_its_scheduler_works_ahead():
    # InferenceX at 2025-12-15, gptoss_fp4_b200_docker.sh: async-scheduling: true, under vLLM 0.11.2 that has it off by default
    assert question(engine="vllm", version="vllm/vllm-openai:v0.11.2", notes=INFERENCEX).ahead
    assert not question(engine="vllm", version="0.12.0").ahead
    assert question(engine="vllm", version="0.12.0", notes="server flags: async-scheduling=true dtype=bfloat16").ahead
    assert question(engine="vllm", version="0.19.0").ahead
    assert not question(engine="vllm", version="0.19.0", notes="serve: vllm serve X --no-async-scheduling").ahead
    assert question().ahead
    assert not question(notes="serve: python -m sglang.launch_server --disable-overlap-schedule --tp 8").ahead


def test_requests_of_ml_energy_are_penalized():
    # ml-energy/benchmark@c1d6557: temperature 0.8, top_p 0.95, repetition_penalty 1.1 in every request
    flags = "origin=ML.ENERGY v3.0; server flags: async-scheduling=true max-num-batched-tokens=8192"
    told, plain = (question(engine="vllm", version="0.11.1", metric="tpot_ms", notes=notes) for notes in (flags, ""))
    assert (told.sampling, told.ahead) == ("penalized", False)
    assert plain.sampling == "greedy"
    factors = dict.fromkeys(priors().terms, 1.0)
    sampled, greedy = (float(predict(benches_of([one])[0], factors)[0]) for one in (told, plain))
    # 16 rows of 151,936 words: a sort, and passes over 120 bytes a logit
    assert sampled - greedy == pytest.approx(16 * 151_936 * (0.13e-9 + 120 / (8e12 * 0.79)), rel=0.15)


def test_rows_that_verify_drafts_are_refused():
    with pytest.raises(UnusableRow, match="drafts"):
        question(notes="origin=club-3090; compose=dual/bf16-mtp.yml (TP=2); speculative=no or unsaid")
    assert question(notes="compose=qwen3.6-35b-a3b/dual/fp8.yml (TP=2, vision, no-MTP); speculative=no or unsaid")


def test_graphs_replay_the_prompts_that_a_script_captures_them_for():
    # gptoss_fp4_b200.sh: max-cudagraph-capture-size 2048; 70b_fp8_b200_docker.sh: cudagraph_mode FULL_DECODE_ONLY
    cells = {"engine": "vllm", "notes": INFERENCEX}
    told = question(**cells | {"model": "gpt-oss-120b", "precision_weights": "fp4"})
    assert dict(told.flags) == {"graph_tokens": 2048}
    assert dict(question(**cells | {"model": "llama-3.1-70b"}).flags) == {"graph_tokens": 0}
    assert not question(**cells | {"model": "llama-3.1-70b", "gpu": "h200_sxm"}).flags
    minimax = cells | {"model": "MiniMaxAI/MiniMax-M2.5"}
    assert [dict(question(**minimax | {"version": one}).flags) for one in ("0.18.0", "0.19.0")] == [
        {}, {"graph_tokens": 2048},
    ]  # fmt: skip
    assert not question(engine="vllm", model="gpt-oss-120b", precision_weights="fp4").flags


def test_runs_that_nobody_warmed_up_wait_for_kernels_to_be_compiled():
    # InferenceX@d053ae24e gave every benchmark warm-ups on 2026-01-21; before, MI355X had 50 prompts for each request in flight
    cells = {"model": "deepseek-r1", "gpu": "mi355x", "engine": "sglang"}
    before, after = (
        question(**cells | {"notes": f"{INFERENCEX}; measured={day}"}) for day in ("2025-12-20", "2026-02-01")
    )
    assert dict(before.flags) == {"uncompiled_share": 0.02, "queue_share": 0.01}
    assert not after.flags
    longer = question(**cells | {"notes": f"{INFERENCEX}; run 1 (2025-12..2026-01)", "osl": "8192"})
    assert dict(longer.flags)["uncompiled_share"] == 0.05
    factors = dict.fromkeys(priors().terms, 1.0)
    cold, warm = (float(predict(benches_of([one])[0], factors)[0]) for one in (before, after))
    host = benches_of([before])[0].machine.coefficients
    waited_s = 0.02 * host.compile_s
    # fewer of all came with the first burst: less of a wait for the prompts ahead
    assert 0.5 * waited_s < cold - warm < waited_s
