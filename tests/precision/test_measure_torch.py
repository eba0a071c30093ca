"""Real weights measured: the decoder agrees with Transformers, sensitivities with whole runs, plans beat uniform formats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from trilemma.cli.main import main  # noqa: E402
from trilemma.errors import InputError  # noqa: E402
from trilemma.models.resolve import load_model  # noqa: E402
from trilemma.precision import sensitivity  # noqa: E402
from trilemma.precision.activation_statistics import measure_activations  # noqa: E402
from trilemma.precision.emulation import EmulatedFormats, Emulator, check_formats, cut  # noqa: E402
from trilemma.precision.measure import Evaluation, candidates, open_bench  # noqa: E402
from trilemma.precision.measured_plan import Settling, midway_budgets  # noqa: E402
from trilemma.precision.patterns import groups_of  # noqa: E402
from trilemma.precision.sensitivity import Sensitivities, measure_sensitivities, read_sensitivities  # noqa: E402
from trilemma.precision.tiny_model import FOLDER, tiny_shape, train  # noqa: E402

TEXT = FOLDER / "held_out.txt"


@pytest.fixture(scope="module")
def bench() -> Evaluation:
    return open_bench(FOLDER, TEXT, sequences=6, window=192)


@pytest.fixture(scope="module")
def measured(bench: Evaluation) -> Sensitivities:
    return measure_sensitivities(bench.calibration, candidates(None))


@pytest.fixture(scope="module")
def settling(bench: Evaluation, measured: Sensitivities) -> Settling:
    return Settling(measured.problem(), bench.calibration, bench.held_out)


def test_the_decoder_is_that_of_transformers(bench: Evaluation) -> None:
    transformers = pytest.importorskip("transformers")
    run = bench.held_out
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(run.inputs).logits
        loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), run.targets.flatten()).exp().item()
    assert run.quality(EmulatedFormats()).reference_perplexity == pytest.approx(loss, rel=1e-5)


def test_full_precision_loses_nothing_and_the_model_has_learnt(bench: Evaluation) -> None:
    quality = bench.held_out.quality(EmulatedFormats())
    assert quality.kl == pytest.approx(0.0, abs=1e-9)
    assert quality.reference_perplexity < 2.0  # of 256 bytes; unigrams of this text are near 20


@pytest.mark.slow
def test_a_sensitivity_is_the_whole_run_with_one_group_changed(bench: Evaluation, measured: Sensitivities) -> None:
    rows = {(row.group, row.format): row for row in measured.rows}
    for group, fmt in (
        ("embedding", "int4_g32"),
        ("0.attention.qkv", "nvfp4"),
        ("3.ffn.down", "mxfp4"),
        ("head", "int3_g32"),
    ):
        alone = bench.calibration.quality(EmulatedFormats(weights={group: fmt}))
        assert rows[group, fmt].kl == pytest.approx(alone.kl, rel=1e-4, abs=1e-9)


def test_passes_do_not_change_the_figures(
    bench: Evaluation, measured: Sensitivities, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensitivity, "_STATES_BYTES", 5 * 4 * bench.calibration.inputs.numel() * 128)
    small = measure_sensitivities(bench.calibration, ["int4_g32", "int3_g32"])
    whole = {(row.group, row.format): row.kl for row in measured.rows}
    for row in small.rows:
        assert row.kl == pytest.approx(whole[row.group, row.format], rel=1e-4, abs=1e-9)


def test_proxies_rank_formats_as_losses_do(measured: Sensitivities) -> None:
    for group in measured.elements:
        rows = {row.format: row for row in measured.rows if row.group == group}
        assert rows["int8_g32"].sqnr_db > rows["int6_g32"].sqnr_db > rows["int4_g32"].sqnr_db > rows["int3_g32"].sqnr_db
        assert rows["int8_g32"].weighted_error < rows["int4_g32"].weighted_error < rows["int2_g32"].weighted_error


@pytest.mark.slow
@pytest.mark.parametrize("bits", [3.5, 4.25, 4.5, 5.0, 5.5, 6.5, 8.25])
def test_plans_are_as_good_as_the_best_uniform_format_that_fits(settling: Settling, bits: float) -> None:
    found = settling.settle(settling.problem.bytes_at(bits))
    assert found.chosen.bytes <= found.budget_bytes
    assert found.against_uniform is not None
    assert found.against_uniform <= 1.05
    assert found.greedy.loss <= 1.03 * found.exact.loss


def test_plans_win_between_the_sizes_of_uniform_formats(settling: Settling) -> None:
    ratios = [settling.settle(budget).against_uniform for budget in midway_budgets(settling)]
    assert sum(ratio is not None and ratio <= 0.8 for ratio in ratios) >= 2


def test_fewest_bytes_within_a_measured_loss(settling: Settling) -> None:
    found = settling.settle_loss(0.01, steps=6)
    assert found.calibration.kl <= 0.01
    assert found.chosen.bytes < settling.problem.bytes_at(4.5)
    with pytest.raises(InputError, match="widest formats"):
        settling.settle_loss(-1.0)


def test_activations_and_cache(bench: Evaluation) -> None:
    found = {one.name: one for one in measure_activations(bench.calibration)}
    assert {"0.qkv", "0.k", "0.v", "3.down", "head"} <= set(found)
    one = found["2.k"]
    assert one.channels == 64
    assert one.amax >= one.median_channel_amax > 0
    assert one.kept["fp8_channel"].sqnr_db > one.kept["fp8_e5m2"].sqnr_db
    assert found["0.qkv"].kept["fp8_tensor"].overflows_percent == 0.0


def test_activation_formats_cost_something(bench: Evaluation) -> None:
    roles = ("attention.qkv", "attention.o", "ffn.gate_up", "ffn.down")
    int8 = bench.calibration.quality(EmulatedFormats(activations=dict.fromkeys(roles, "int8_channel")))
    int4 = bench.calibration.quality(EmulatedFormats(activations=dict.fromkeys(roles, "int4_channel")))
    assert 0 < int8.kl < int4.kl


def test_figures_are_read_again(measured: Sensitivities, tmp_path: Path) -> None:
    path = tmp_path / "sensitivity.json"
    path.write_text(json.dumps(measured.to_json()))
    assert read_sensitivities(path).problem() == measured.problem()


@pytest.mark.parametrize(
    "change",
    [{"schema": "x"}, {"elements": []}, {"sensitivities": [3]}, {"perplexity": "high"}, {"tokens": -1},
     {"sensitivities": [{"group": "head", "format": "int4_g32", "bytes": 1, "kl": "NaN"}]}, {"sensitivities": []}],
)  # fmt: skip
def test_damaged_figures_are_refused(measured: Sensitivities, change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "sensitivity.json"
    path.write_text(json.dumps(measured.to_json() | change))
    with pytest.raises(InputError):
        read_sensitivities(path).problem()


def test_groups_are_those_of_plans() -> None:
    names = [group.name for group in groups_of(load_model(str(FOLDER)))]
    emulator = Emulator(open_bench(FOLDER, TEXT).calibration.weights, np.zeros((1, 4), np.int64))
    assert names == list(emulator.groups)


@pytest.mark.slow
def test_commands_from_weights_to_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--sequences", "2", "--window", "96", "--formats", "bf16,int6_g32,int4_g32,int3_g32"]
    assert main(["precision", "measure", str(FOLDER), "--data", str(TEXT), *few, "--json"]) == 0
    figures = tmp_path / "figures.json"
    figures.write_text(capsys.readouterr().out)
    chosen = tmp_path / "chosen.json"
    command = ["precision", "allocate", str(FOLDER), "--data", str(TEXT), *few, "--sensitivity", str(figures)]
    assert main([*command, "--bits", "4", "5", "-o", str(chosen)]) == 0
    assert "KL predicted" in capsys.readouterr().out
    assert main([*command, "--max-kl", "0.02", "--json"]) == 0
    budget = json.loads(capsys.readouterr().out)["budgets"][0]
    assert budget["kl_measured"] <= 0.02
    assert main(["precision", "plan", str(FOLDER), "--plan", str(chosen), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {"int4_g32", "int3_g32"} & {group["weights"] for group in plan["groups"]}
    assert main(["precision", "plan", str(FOLDER), "--sensitivity", str(figures), "--max-kl", "0.01", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights_bytes"] < 802_816
    assert main(["precision", "plan", "qwen3-4b", "--sensitivity", str(figures), "--max-kl", "0.01"]) == 2


@pytest.mark.slow
def test_the_frontier_is_drawn(settling: Settling, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from trilemma.report.frontier_plot import plot_frontier

    settled = [settling.settle(settling.problem.bytes_at(bits)) for bits in (4.5, 5.0)]
    path = tmp_path / "frontier.svg"
    plot_frontier(path, settled, settling.uniforms(), settling.problem, settling.frontier)
    assert "nats per token" in path.read_text(encoding="utf-8") or path.stat().st_size > 10_000
    with pytest.raises(InputError, match="no kind drawn"):
        plot_frontier(tmp_path / "frontier.gif", settled, settling.uniforms(), settling.problem, settling.frontier)


def test_formats_that_cannot_hold_weights_are_refused() -> None:
    for name in ("int4", "fp8_e4m3", "e8m0", "nope"):
        with pytest.raises(InputError):
            check_formats([name])


def test_texts_too_short_are_refused() -> None:
    with pytest.raises(InputError, match="more text"):
        cut(np.arange(100), sequences=2, tokens=64)


@pytest.mark.slow
def test_training_learns_and_repeats() -> None:
    losses: list[float] = []
    text = TEXT.read_text(encoding="utf-8")
    first = train(text, steps=12, report=lambda _, loss: losses.append(loss))
    again = train(text, steps=12)
    assert losses[-1] < losses[0] - 1.0
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert {name: tuple(value.shape) for name, value in first.items()} == tiny_shape().tensors()


def small_decoder(path: Path, change: dict[str, tuple[int, float]]) -> Path:
    """A llama2.c file of a random decoder whose tensors named in ``change`` have one row set to a value."""
    hidden, intermediate, layers, heads, kv_heads, vocab, positions = 16, 20, 1, 4, 2, 24, 32
    rng = np.random.default_rng(3)
    sizes = {
        "embedding": (vocab, hidden), "norm1": (hidden,), "q": (16, 16), "k": (8, 16), "v": (8, 16), "o": (16, 16),
        "norm2": (hidden,), "gate": (intermediate, hidden), "down": (hidden, intermediate), "up": (intermediate, hidden),
        "norm": (hidden,),
    }  # fmt: skip
    head = np.array([hidden, intermediate, layers, heads, kv_heads, vocab, positions], np.int32).tobytes()
    body = b""
    for name, size in sizes.items():
        values = np.ones(size, np.float32) if len(size) == 1 else rng.standard_normal(size).astype(np.float32)
        if name in change:
            row, value = change[name]
            values[row] = value
        body += values.tobytes()
    path.write_bytes(head + body + bytes(4 * positions * 4))
    return path


def test_zero_rows_and_short_groups_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = small_decoder(tmp_path / "small.bin", {"embedding": (5, 0.0), "down": (2, 0.0), "q": (0, 0.0)})
    np.save(tmp_path / "ids.npy", np.random.default_rng(1).integers(0, 24, 100))
    command = ["precision", "measure", str(weights), "--data", str(tmp_path / "ids.npy"), "--window", "16", "--json"]
    assert main([*command, "--formats", "int4_g32,int8_g128,nvfp4,mxfp4,nf4,fp8_channel,fp8_block,q8_0"]) == 0
    rows = json.loads(capsys.readouterr().out)["sensitivity"]["sensitivities"]
    assert {row["format"] for row in rows} == {
        "int4_g32",
        "int8_g128",
        "nvfp4",
        "mxfp4",
        "nf4",
        "fp8_channel",
        "fp8_block",
    }
    assert all(np.isfinite(row["kl"]) and row["kl"] >= -1e-6 for row in rows)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("tensor", ["embedding", "gate", "norm"])
def test_values_that_are_no_numbers_end_in_one_line(
    tensor: str, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = small_decoder(tmp_path / "small.bin", {tensor: (1, value)})
    np.save(tmp_path / "ids.npy", np.arange(24).repeat(4))
    code = main(["precision", "measure", str(weights), "--data", str(tmp_path / "ids.npy"), "--window", "16"])
    assert code == 2
    assert "NaN or infinite" in capsys.readouterr().err


def test_scales_beyond_their_format_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = small_decoder(tmp_path / "small.bin", {"gate": (1, 3e7)})
    np.save(tmp_path / "ids.npy", np.arange(24).repeat(4))
    command = ["precision", "measure", str(weights), "--data", str(tmp_path / "ids.npy"), "--window", "16"]
    assert main([*command, "--formats", "int4_g32"]) == 2
    assert "above 65504" in capsys.readouterr().err.replace(",", "")
