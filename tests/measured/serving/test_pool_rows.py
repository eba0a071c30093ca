"""Rows of prefill and decode apart: what a row lays out, what its scripts set beside, and what is said of it."""

from __future__ import annotations

import pytest

from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.judge import judge
from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.tables import Row, UnusableRow

INFERENCEX = "origin=InferenceX; run 20321908209; disaggregated: "
#: Figures of public runs (gminneci/mantile@72ff84eb, InferenceMAX 2025-12), SGLang 0.5.5 on GB200.
WIDE = "prefill 4 workers x tp1 ep1 dp_attention=true (16 GPUs); decode 1 workers x tp1 ep1 dp_attention=true (48 GPUs)"
SMALL = "prefill 1 workers x tp1 ep1 dp_attention=true (4 GPUs); decode 1 workers x tp1 ep1 dp_attention=true (4 GPUs)"


def row(**cells: str) -> Row:
    told = {
        "model": "deepseek-ai/DeepSeek-R1", "precision_weights": "fp8", "gpu": "gb200", "engine": "sglang",
        "version": "0.5.5.post2", "isl": "8192", "osl": "1024", "concurrency_or_batch": "32", "metric": "tpot_ms",
        "value": "21.2", "notes": INFERENCEX + SMALL, "tier": "B",
    }  # fmt: skip
    return Row(id="r", line=1, cells=told | cells)


def question(**cells: str) -> SpeedQuestion:
    return read_speed_question(row(**cells), None)


def test_cards_of_all_workers_are_shared_out_and_wide_pools_attend_alone():
    found = question(notes=INFERENCEX + WIDE).pools
    assert found is not None
    assert (found.prefill_workers, found.prefill.dp, found.prefill.tp) == (4, 4, 1)
    assert (found.decode_workers, found.decode.dp, found.decode.ep, found.decode.tp) == (1, 48, 48, 1)
    assert (found.gpus, found.decode_gpus) == (64, 48)


def test_scripts_of_one_node_run_tensor_parallel_whatever_the_row_states():
    # 8k1k-low-latency.sh: --tensor-parallel-size $TOTAL_GPUS --data-parallel-size 1 --mem-fraction-static 0.95
    found = question()
    assert found.pools is not None
    assert (found.pools.prefill.tp, found.pools.decode.tp, found.pools.decode.dp) == (4, 4, 1)
    assert found.pools.memory_fraction == 0.95
    assert any("tensor parallel in both pools" in one for one in found.assumed)
    elsewhere = question(gpu="h200_sxm").pools
    assert elsewhere is not None
    assert elsewhere.decode.dp == 4


def test_output_for_a_decode_card_is_shared_out_over_both_pools():
    # SemiAnalysisAI/InferenceX utils/process_result.py divides by decode_gpus: 630.1 a card of 48 is 472.6 a card of 64
    found = question(notes=INFERENCEX + WIDE, metric="output_tok_s_per_gpu", value="630.1")
    assert found.measured == pytest.approx(630.1 * 48 / 64)
    # which is what requests in flight over their time come to (Little), the end of the run apart
    little = 512 * 0.9 * 1024 / (0.8522 + (0.9 * 1024 - 1) * 0.0150) / 64
    assert found.measured == pytest.approx(little, rel=0.1)


def test_the_short_form_is_read_and_one_without_workers_is_not():
    short = "origin=InferenceX; mode=disagg; P:1x(tp4 dp1 ep1) D:2x(tp1 dp8 ep8)"
    found = question(notes=short, gpu="b200_sxm").pools
    assert found is not None
    assert (found.prefill.tp, found.decode_workers, found.decode.dp) == (4, 2, 8)
    with pytest.raises(UnusableRow, match="does not lay out"):
        question(notes="origin=InferenceX; mode=disagg; P:x(tp8 dp1 ep8) D:x(tp8 dp1 ep8)")


def test_fits_pass_such_rows_by():
    assert benches_of([question()]) == []


def test_figures_of_a_public_run_are_told():
    # 32 requests in flight on 1 x TP4 + 1 x TP4, means over five runs: 2.88 s, 21.2 ms; 309 tokens/s a decode card
    rows = [row(), row(metric="ttft_ms", value="2875.3"), row(metric="output_tok_s_per_gpu", value="309.4")]
    judged, _ = judge(rows)
    for one in judged:
        assert not one.skipped
        comparison = one.comparisons[0]
        # prefill is busy nine tenths of the time there: a tenth more of it is a third more of a queue
        within = 0.35 if comparison.metric == "ttft_ms" else 0.2
        assert comparison.predicted == pytest.approx(comparison.measured, rel=within)
        assert comparison.low is not None
        assert comparison.low < comparison.predicted < (comparison.high or 0)
        assert one.classes["pools"] == "apart"


def test_tokens_sent_to_their_experts_make_wide_decode_quicker():
    # measured: 22.3 ms at 4,096 requests in flight; gathered by all 48 ranks they would take twice as long
    judged, _ = judge(
        [row(notes=INFERENCEX + WIDE, precision_weights="fp4", isl="1024", concurrency_or_batch="4096", value="22.3")]
    )
    comparison = judged[0].comparisons[0]
    assert comparison.predicted == pytest.approx(22.3, rel=0.25)
