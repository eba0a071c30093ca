"""Serving-speed tables: rows read or refused with a reason, figures in their units, the look-up beside, refits that do
not see what they judge."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.measured.serving.speed.baseline import interpolated
from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.distance import distances
from trilemma.measured.serving.speed.judge import METRICS, judge
from trilemma.measured.serving.speed.question import engine_of, read_speed_question
from trilemma.measured.serving.speed.row_loads import most_sequences_of
from trilemma.measured.tables import Row, UnusableRow, read_table
from trilemma.timing import serving_terms
from trilemma.timing.distance import Seen

ROW = {
    "model": "llama-3.1-70b", "precision_weights": "fp8", "gpu": "h200_sxm", "gpus": "8", "tp": "8", "pp": "1", "ep": "1",
    "dp": "1", "engine": "vllm", "isl": "1024", "osl": "1024", "concurrency_or_batch": "16", "metric": "tpot_ms",
    "value": "10", "notes": "", "tier": "A",
}  # fmt: skip


def row(name: str = "r", **cells: str) -> Row:
    return Row(id=name, line=1, cells={key: value for key, value in {**ROW, **cells}.items() if value})


def question_of(one: Row):
    return read_speed_question(one, None)


def question(**cells: str):
    return read_speed_question(row(**cells), None)


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("vLLM", "vllm"), ("sglang", "sglang"), ("trtllm", "tensorrt-llm"), ("TensorRT-LLM (pytorch)", "tensorrt-llm"),
        ("llama.cpp (layer split)", "llama.cpp"), ("Ollama / llama.cpp", "llama.cpp"),
    ],
)  # fmt: skip
def test_engines_by_the_words_of_tables(text: str, engine: str):
    assert engine_of(text) == engine


def test_lengths_drawn_below_the_nominal_ones_count_in_the_mean():
    drawn = question(notes="origin=InferenceX; mode=agg")
    assert (drawn.isl, drawn.osl) == pytest.approx((921.6, 921.6))
    assert question().isl == 1024


def test_attention_data_parallel_ranks_lie_inside_the_tensor_parallel_group():
    layout = question(dp="8", ep="8").layout
    assert (layout.tp, layout.dp, layout.ep, layout.gpus) == (1, 8, 8, 8)


def test_weights_are_stored_as_the_row_says():
    assert question(precision_weights="fp4").precision == "nvfp4"
    assert question(model="gpt-oss-120b", precision_weights="fp4").precision == "mxfp4"
    assert question(precision_weights="").precision == "bf16"


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"notes": "origin=InferenceX; mode=disagg"}, "pools"),
        ({"engine": "ExLlama(V2)"}, "not modelled"),
        ({"engine": ""}, "no engine"),
        ({"gpus": "", "tp": ""}, "no layout"),
        ({"gpus": "16"}, "is not 16 GPUs"),
        ({"concurrency_or_batch": ""}, "no concurrency"),
        ({"concurrency_or_batch": "scenario=MultiStream"}, "rate"),
        ({"osl": ""}, "no output length"),
        ({"value": "-1"}, "outside"),
        ({"value": "nan"}, "finite"),
        ({"value": ""}, "no value"),
        ({"metric": "speed"}, "not one of"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"gpu": "Pi 5"}, "unknown accelerator"),
    ],
)
def test_rows_that_cannot_be_asked_say_why(cells: dict[str, str], why: str):
    with pytest.raises(UnusableRow, match=why):
        read_speed_question(row(**cells), None)


def test_every_kind_of_figure_is_judged_in_its_own_unit():
    rows = [
        row("tpot"),
        row("ttft", metric="ttft_ms", value="100"),
        row("total", metric="output_tok_s_total", value="1500"),
        row("gpu", metric="output_tok_s_per_gpu", value="187.5"),
        row("queued", metric="output_tok_s_total", concurrency_or_batch="max load (all requests queued)", value="9000"),
        row("decode", metric="decode_tok_s", engine="llama.cpp", isl="0", concurrency_or_batch="1", gpus="1", tp="",
            gpu="RTX 4090", model="llama-3-8b", precision_weights="Q4_K_M", value="130"),
        row("prefill", metric="prefill_tok_s", engine="llama.cpp", osl="0", concurrency_or_batch="1", gpus="1", tp="",
            gpu="RTX 4090", model="llama-3-8b", precision_weights="Q4_K_M", value="6000"),
    ]  # fmt: skip
    judgements, document = judge(rows)
    assert document == {}
    found = {one.row_id: one.comparisons[0] for one in judgements}
    for name, comparison in found.items():
        assert comparison.predicted == pytest.approx(comparison.measured, rel=0.5), name
        assert comparison.low is not None
        assert comparison.low < comparison.predicted < comparison.high
    assert found["total"].predicted == pytest.approx(8 * found["gpu"].predicted)
    assert judgements[0].classes["family"] == "dense"
    assert {one.metric for one in judgements[0].comparisons} <= set(METRICS)


def test_the_look_up_uses_neighbours_on_both_sides_only():
    questions = [
        question(concurrency_or_batch=load, value=value)
        for load, value in (("4", "10"), ("16", "99"), ("16", "98"), ("64", "40"), ("256", "50"))
    ]
    looked_up = interpolated(questions)
    assert np.isnan(looked_up[[0, 4]]).all()
    assert looked_up[1] == pytest.approx(20.0)  # half way between 4 and 64 on a logarithmic scale
    assert np.isnan(interpolated(questions, ["one"] * 5)).all()


def test_experts_over_all_ranks_may_be_said_by_a_word():
    assert question(ep="on").layout.ep == 8
    assert question(ep="1").layout.ep == 1


def test_a_load_stated_by_its_rate_is_the_requests_that_it_keeps_in_flight():
    """Little's law: the rate that 64 requests in flight finish is judged as 64 requests in flight are, give or take one: those
    that arrive wait otherwise for prompts ahead of them."""
    (steady,), _ = judge([row(concurrency_or_batch="64", metric="output_tok_s_total", value="1000")])
    rate = steady.comparisons[0].predicted / 1024
    (loaded,), _ = judge([row(concurrency_or_batch="64")])
    (arriving,), _ = judge([row(concurrency_or_batch=f"rate={0.9999 * rate:.4f} req/s")])
    assert arriving.comparisons[0].predicted == pytest.approx(loaded.comparisons[0].predicted, rel=0.01)
    (slower,), _ = judge([row(concurrency_or_batch=f"rate={rate / 8:.4f}")])
    assert slower.comparisons[0].predicted < loaded.comparisons[0].predicted
    with pytest.raises(UnusableRow, match="outside"):
        question(concurrency_or_batch="rate=0")


def test_rows_say_how_far_they_lie_from_those_of_the_fit():
    rows = [
        row("own"),
        row("card", gpu="gh200"),
        row("precision", precision_weights="int4", gpu="h200_sxm", engine="sglang"),
    ]
    judgements, _ = judge(rows)
    assert [one.classes["distance"] for one in judgements] == ["own deployment", "card never seen", "other precision"]
    era = {text: judge([row(version=text)])[0][0].classes["era"] for text in ("0.11.1", "v0.9.2-rc1", "")}
    assert list(era.values()) == ["vllm 0.11", "vllm 0.9", "vllm not stated"]


def test_distance_without_a_group_is_told_by_the_rows_that_are_left():
    rows = [row("a"), row("b", model="qwen3-32b"), row("c", gpu="b200_sxm"), row("d", gpu="b200_sxm", engine="sglang")]
    benches = benches_of([question_of(one) for one in rows])
    nothing = Seen()

    def by(*groups: str) -> list[str]:
        return distances(benches, [question_of(one) for one in rows], nothing, groups)

    assert by("1", "2", "3", "4") == ["other model", "other model", "pair never together", "engine never seen"]
    assert by("1", "1", "3", "3")[0] == "card never seen"
    assert by("1", "1", "2", "3") == ["card never seen", "card never seen", "pair never together", "engine never seen"]
    assert set(distances(benches, [question_of(one) for one in rows], nothing)) == {"engine never seen"}


def measured(tmp_path: Path) -> Path:
    """A table whose figures are what the shipped terms predict, with one card 1.5 times as slow."""
    rows = [
        row(f"{gpu}-{load}-{metric}", gpu=gpu, concurrency_or_batch=str(load), metric=metric)
        for gpu in ("h100_sxm", "h200_sxm", "b200_sxm")
        for load in (1, 4, 16, 64)
        for metric in ("tpot_ms", "ttft_ms")
    ]
    judgements, _ = judge(rows)
    path = tmp_path / "speed.csv"
    lines = [",".join(["id", *ROW])]
    for one, judgement in zip(rows, judgements, strict=True):
        slow = 1.5 if one.text("gpu") == "b200_sxm" else 1.0
        cells = {**ROW, **one.cells, "value": f"{slow * judgement.comparisons[0].predicted:.6g}"}
        lines.append(",".join([one.id, *(cells[name] for name in ROW)]))
    path.write_text("\n".join(lines))
    return path


@pytest.mark.slow
def test_a_group_held_out_is_judged_by_terms_that_never_saw_it(tmp_path: Path):
    table = read_table(measured(tmp_path))
    judgements, document = judge(table.rows, holdout=("gpu", "engine"))
    assert (document["columns"], document["groups"]) == (["gpu", "engine"], 3)
    ratio = [
        one.comparisons[0].measured / one.comparisons[0].predicted
        for one in judgements
        if one.cells["gpu"] == "nvidia-b200-sxm-180gb" and one.comparisons[0].metric == "tpot_ms"
    ]
    assert np.median(ratio) > 1.2  # the slow card was not seen
    seen, _ = judge(table.rows, holdout=("concurrency_or_batch",))
    ratio = [
        one.comparisons[0].measured / one.comparisons[0].predicted
        for one in seen
        if one.cells["gpu"] == "nvidia-b200-sxm-180gb" and one.comparisons[0].metric == "tpot_ms"
    ]
    assert np.median(ratio) < 1.15  # other rows of it were


def test_validate_prints_the_look_up_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert (
        main(["validate", str(measured(tmp_path)), "--where", "gpu=h200_sxm", "--require", "tpot_ms.median_ape<=0.01"])
        == 0
    )
    out = capsys.readouterr().out
    assert "tpot_ms_interpolated" in out
    assert "tpot_ms_where_interpolated" in out


def test_calibrate_serving_table_writes_terms_that_fit_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table, output = measured(tmp_path), tmp_path / "terms.json"
    words = ["calibrate", "serving-table", str(table), "--source", "a test", "--as-of", "2026-11-29", "-o", str(output)]
    assert main(words) == 0
    terms = serving_terms.from_document(json.loads(output.read_text()))
    assert terms.source == "a test"
    judgements, _ = judge(read_table(table).rows, terms=terms)
    errors = [abs(one.comparisons[0].predicted / one.comparisons[0].measured - 1) for one in judgements]
    assert np.median(errors) < 0.07  # one card half as fast again: priors hold it back
    capsys.readouterr()
    assert main([*words[:-3], "soon", "-o", str(output)]) == 2


def test_arrivals_wait_for_those_a_little_before_them_as_an_estimate_says():
    """A row at a rate is what `trilemma fit --rate` answers for it, its first token too."""
    deployment = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "gpu": "h100_sxm",
        "gpus": "8",
        "tp": "8",
        "engine": "vllm",
    }
    asked = deployment | {
        "precision_weights": "fp8",
        "isl": "2048",
        "osl": "256",
        "concurrency_or_batch": "rate=4 req/s",
    }
    judged, _ = judge([row(**asked, metric=metric, value="50") for metric in ("ttft_ms", "tpot_ms")])
    ttft_ms, tpot_ms = (one.comparisons[0].predicted for one in judged)
    answer = tl.fit("llama-3.1-70b-fp8", "h100-sxm:8", isl=2048, osl=256, rate=4.0, kv_dtype="fp8")
    assert ttft_ms == pytest.approx(answer.speed.ttft_s.interval.value * 1e3, rel=0.02)
    assert tpot_ms == pytest.approx(answer.speed.tpot_s.interval.value * 1e3, rel=0.02)


def test_requests_that_run_at_once_are_those_of_the_servers_flags():
    """ML.ENERGY states what its servers ran: 2,045 of 2,048 requests at once, where the engine's default is 1,024."""
    load = {"gpu": "b200_sxm", "gpus": "8", "tp": "8", "concurrency_or_batch": "2045", "isl": "150", "osl": "600"}
    plain, told = judge([row(**load), row(**load, notes="steady state; max_num_seqs=2048; avg_batch=2045")])[0]
    assert told.comparisons[0].predicted > 1.4 * plain.comparisons[0].predicted
    assert most_sequences_of(row(notes="serve: sglang serve --max-running-requests 48 --tp 4")) == 48
    assert most_sequences_of(row(notes="max_num_seqs 128, max_num_batched_tokens 2048")) == 128
    assert most_sequences_of(row(notes="")) is None


def test_without_flags_vllm_runs_as_many_at_once_as_it_does_on_that_card() -> None:
    """vllm/engine/arg_utils.py: 256 sequences on an A100 whatever its memory, 1,024 on an H100."""
    questions = [
        read_speed_question(row(model="Qwen/Qwen3-8B", gpu=card, concurrency_or_batch="1000"), None)
        for card in ("a100_sxm", "h100_sxm")
    ]
    assert [float(bench.admission.most[0]) for bench in benches_of(questions)] == [256, 1024]
