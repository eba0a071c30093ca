"""The ladder of kernel coefficients and the data files that it reads."""

from __future__ import annotations

import itertools
import json
import time
from importlib import resources

import pytest

from trilemma.errors import InputError, UnknownName
from trilemma.hardware import all_accelerators, find
from trilemma.timing.kernels import kernel_coefficients, kernel_formats, measured_cards
from trilemma.timing.kernels.fitted import check_values
from trilemma.timing.kernels.formulas import COLLECTIVES, PARAMETERS, parameters_of
from trilemma.timing.kernels.ladder import RUNGS, _card_entries

FILES = resources.files("trilemma.data").joinpath("coefficients/kernels")


def documents():
    return [json.loads(FILES.joinpath(f"{card}.json").read_text(encoding="utf-8")) for card in measured_cards()]


def test_every_rung_is_reached_and_none_is_narrower_than_the_one_above():
    asked = (
        ("nvidia-h200-sxm", "vllm", "gemm", "bf16"),
        ("nvidia-h200-sxm", "vllm", "gemm", "fp8_block"),
        ("nvidia-h20-96gb", "vllm", "gemm", "bf16"),
        ("nvidia-h200-sxm", "vllm", "gemm", "w8a16"),
        ("amd-mi300x", "vllm", "gemm", "bf16"),
    )
    rungs = [kernel_coefficients(find(card), engine, kernel, dtype)[1] for card, engine, kernel, dtype in asked]
    assert [rung.name for rung in rungs] == list(RUNGS)
    for above, below in itertools.pairwise(rungs[1:]):
        assert below.low <= above.low
        assert below.high >= above.high
    assert all(rung.low <= 1 <= rung.high for rung in rungs)
    assert "h200" in rungs[0].source


def test_a_stand_in_keeps_the_figures_of_the_card_and_the_bytes_of_the_format():
    card = find("nvidia-h20-96gb")
    c, rung = kernel_coefficients(card, "sglang", "gemm", "fp8")
    assert rung.name == "same architecture"
    assert c.flops_per_s == card.peak_flops["fp8"].value
    assert c.bytes_per_s == card.bandwidth_bytes_per_s.value
    c, _ = kernel_coefficients(find("nvidia-h200-sxm"), "vllm", "gemm", "w4a16")
    assert c.weight_bytes == kernel_formats()["w4a16"].weight_bytes


def test_collectives_do_not_cross_from_links_to_pcie():
    for card in ("nvidia-h100-pcie-80gb", "nvidia-rtx-5090"):
        accelerator = find(card)
        _, rung = kernel_coefficients(accelerator, "vllm", "all_reduce")
        assert accelerator.link is None or "NVLink" in accelerator.link.name
        assert rung.name in ("same architecture", "spec sheet")
        assert "h200" not in rung.source
        assert "h100-sxm" not in rung.source


def test_attention_is_kept_by_width_of_heads_and_window():
    card = find("nvidia-h200-sxm")
    narrow, rung = kernel_coefficients(card, "vllm", "decode_attention", head_dim=64)
    wide, _ = kernel_coefficients(card, "vllm", "decode_attention", head_dim=128)
    unseen, other = kernel_coefficients(card, "vllm", "decode_attention", head_dim=96)
    assert "head width 64" in rung.source
    assert "head width" not in other.source
    assert narrow.values != wide.values != unseen.values


@pytest.mark.parametrize("accelerator", all_accelerators(), ids=lambda card: card.id)
def test_every_card_has_an_answer_for_every_kernel(accelerator):
    for kernel in PARAMETERS:
        c, rung = kernel_coefficients(accelerator, "vllm", kernel)
        check_values(kernel, parameters_of(kernel), c.values)
        assert rung.name in RUNGS


def test_unknown_names_are_refused_with_near_ones():
    card = find("nvidia-h200-sxm")
    with pytest.raises(UnknownName, match="gemm"):
        kernel_coefficients(card, "vllm", "gem")
    with pytest.raises(UnknownName, match="fp8"):
        kernel_coefficients(card, "vllm", "gemm", "fp9")
    with pytest.raises(InputError, match="compute_share"):
        check_values("gemm", parameters_of("gemm"), {"fixed_us": 1.0})


def test_shipped_coefficients_lie_within_their_bounds_and_say_where_they_come_from():
    for document in documents():
        assert document["source"]
        assert document["tables"]
        for entry in document["kernels"]:
            bounds = {parameter.name: parameter for parameter in parameters_of(entry["kernel"])}
            for name, value in entry["values"].items():
                assert bounds[name].low * 0.999 <= value <= bounds[name].high * 1.001, (entry["kernel"], name, value)
            assert entry["rows"] >= 8
            assert 0 < entry["held_out"]["low"] <= 1 <= entry["held_out"]["high"]
            assert entry["held_out"]["mape"] >= 0


def test_shipped_shares_are_of_the_datasheet_figures_in_the_catalogue():
    for document in documents():
        card = find(document["accelerator"])
        datasheet = document["datasheet"]
        assert card.bandwidth_bytes_per_s.value == pytest.approx(datasheet["bandwidth_bytes_per_s"])
        for name, peak in datasheet["peak_flops"].items():
            assert card.peak_flops[name].value == pytest.approx(peak)


def test_no_table_that_is_not_believed_was_fitted():
    for document in documents():
        for entry in document["kernels"]:
            assert not (entry["kernel"] == "gemm" and entry["engine"] == "vllm" and entry["dtype"] == "fp8_block")
            assert not (entry["kernel"] in COLLECTIVES and document["accelerator"] == "nvidia-l40s")


def test_one_card_loads_in_ten_milliseconds():
    best = 1.0
    for _ in range(5):
        _card_entries.cache_clear()
        start = time.process_time()
        _card_entries("nvidia-h200-sxm")
        best = min(best, time.process_time() - start)
    assert best < 0.010
