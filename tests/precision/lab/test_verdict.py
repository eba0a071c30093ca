"""Verdicts, alarms and the early warning on made-up runs: no PyTorch needed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trilemma.errors import InputError
from trilemma.precision.lab.alarms import Thresholds, alarms, first_alarm
from trilemma.precision.lab.recipes import RECIPES
from trilemma.precision.lab.records import LabRun, Probe, Regime
from trilemma.precision.lab.verdict import _t_quantile, judge, warning_rank
from trilemma.precision.lab.warning import early_warning, final_gaps, spearman
from trilemma.precision.signals import GradientSignals, TensorSignals

REGIME = Regime(steps=60)


def signals(
    *, sqnr_db: float = 30.0, underflows: float = 0.0, overflows: float = 0.0, non_finite: float = 0.0
) -> TensorSignals:
    return TensorSignals(
        elements=100,
        amax=1.0,
        mse=0.0,
        sqnr_db=sqnr_db,
        underflows_percent=underflows,
        overflows_percent=overflows,
        non_finite_percent=non_finite,
    )


def probe(step: int, *, cosine: float = 1.0, ratio: float = 1.0, **settings: object) -> Probe:
    gradient = GradientSignals(norm=ratio, reference_norm=1.0, norm_ratio=ratio, cosine=cosine)
    return Probe(**{"step": step, "loss": 2.0, "shadow_loss": 2.0, "gradient": gradient, "tensors": {}} | settings)


def run(name: str, seed: int, final: float, *, stopped_at: int | None = None, probes: tuple[Probe, ...] = ()) -> LabRun:
    """A loss that falls from 4 to ``final`` over 40 steps and stays there."""
    losses = [4 + (final - 4) * min(1, step / 40) for step in range(REGIME.steps)]
    if stopped_at is not None:
        losses = [*losses[:stopped_at], math.nan]
    return LabRun(
        recipe=RECIPES[name],
        regime=REGIME,
        seed=seed,
        losses=tuple(losses),
        probes=probes,
        stopped_at=stopped_at,
        held_out_loss=final,
        low_precision_share=0.0 if name == "bf16" else 1.0,
    )


def matrix() -> list[LabRun]:
    ends = {
        "bf16": (2.0, 2.1, 2.05),
        "current": (2.05, 2.06, 2.07),
        "naive-head-kept": (2.5, 2.6, 2.5),
        "naive": (6.0, 7.0, 8.0),
    }
    runs = [run(name, seed, final) for name, finals in ends.items() for seed, final in enumerate(finals)]
    return [*runs, *(run("delayed-nan", seed, math.nan, stopped_at=3 + seed) for seed in range(3))]


def test_outcomes_and_order() -> None:
    (verdict,) = judge(matrix())
    assert [one.recipe.name for one in verdict.recipes] == [
        "bf16",
        "current",
        "naive-head-kept",
        "naive",
        "delayed-nan",
    ]
    assert [one.outcome for one in verdict.recipes] == ["reference", "as good", "worse", "blown up", "stopped"]
    assert verdict.of("current").inside_noise
    assert not verdict.of("naive-head-kept").inside_noise
    assert verdict.of("naive-head-kept").gap == pytest.approx(29 / 60)
    assert verdict.of("delayed-nan").stops == {0: 3, 1: 4, 2: 5}
    assert verdict.of("delayed-nan").since_step == 3
    assert math.isnan(verdict.of("delayed-nan").gap)
    assert 4 <= (verdict.of("naive-head-kept").since_step or 0) < 10


def test_noise_comes_from_recipes_that_do_not_fail() -> None:
    (verdict,) = judge(matrix())
    # Gaps 0.05, -0.04, 0.02 of "current" alone: mean 0.01, squares 0.0016 + 0.0025 + 0.0001 over two degrees of freedom.
    assert verdict.seed_noise == pytest.approx(math.sqrt(0.0042 / 2))
    assert verdict.of("current").noise == pytest.approx(4.303 * math.sqrt(0.0042 / 2) / math.sqrt(3))


def test_mitigations_are_ranked_and_say_what_changes() -> None:
    (verdict,) = judge(matrix())
    assert set(verdict.mitigations) == {"naive", "naive-head-kept", "delayed-nan"}
    assert [one.verdict.recipe.name for one in verdict.mitigations["naive"]] == ["current", "naive-head-kept"]
    assert verdict.mitigations["naive"][1].changes == {"scope": ("all", "all but head")}


def test_what_keeps_all_arithmetic_narrow_comes_before_what_gives_it_up() -> None:
    runs = matrix()
    part = [replace(one, low_precision_share=0.4) for one in (run("naive-attention", seed, 2.06) for seed in range(3))]
    (verdict,) = judge([*runs, *part])
    names = [one.verdict.recipe.name for one in verdict.mitigations["naive"]]
    assert names == ["current", "naive-attention", "naive-head-kept"]
    (by_stop,) = judge([*runs, *(run("delayed-warm-nan", seed, 2.0, stopped_at=20) for seed in range(3))])
    assert [one.verdict.recipe.name for one in by_stop.mitigations["delayed-nan"]][-1] == "delayed-warm-nan"
    assert "delayed-nan" not in {one.verdict.recipe.name for one in by_stop.mitigations["delayed-warm-nan"]}


def test_one_seed_tells_no_noise() -> None:
    (verdict,) = judge([run("bf16", 0, 2.0), run("current", 0, 2.04)])
    assert verdict.seed_noise is None
    assert verdict.of("current").outcome == "as good"
    assert not verdict.of("current").inside_noise


def test_a_reference_that_stops_is_no_measure() -> None:
    runs = [run("bf16", 0, 2.0, stopped_at=10), run("current", 0, 2.0), run("naive", 0, 9.0)]
    (verdict,) = judge(runs)
    assert verdict.of("bf16").stops == {0: 10}
    assert verdict.of("naive").outcome == "blown up"
    assert verdict.of("naive").since_step is None
    assert math.isnan(verdict.of("current").gap)


def test_gaps_need_a_reference() -> None:
    with pytest.raises(InputError, match="bf16"):
        judge([run("current", 0, 2.0)])


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042)]
)
def test_t_quantile(freedom: int, expected: float) -> None:
    assert _t_quantile(freedom) == pytest.approx(expected, rel=0.01)


def test_alarms_by_signal() -> None:
    bounds = Thresholds.shipped()
    assert alarms(probe(0), bounds) == []
    assert [one.signal for one in alarms(probe(0, cosine=0.3), bounds)] == ["gradient cosine to BF16"]
    assert [one.signal for one in alarms(probe(0, ratio=3.0), bounds)] == ["gradient norm ratio to BF16"]
    loud = probe(
        0, tensors={("head", "x"): signals(overflows=5.0, sqnr_db=9.0), ("head", "g"): signals(underflows=99.0)}
    )
    assert [one.signal for one in alarms(loud, bounds)] == ["overflows%", "underflows%"]
    assert alarms(loud, bounds)[0].where == "head.x"
    assert alarms(probe(0, tensors={("head", "x"): signals(overflows=0.4)}), bounds) == []
    assert alarms(probe(0, applied=False, cosine=0.0), bounds) == []
    assert [one.value for one in alarms(probe(0, shadow_loss=24.0), bounds)] == [22.0]
    assert [one.signal for one in alarms(probe(0, frozen_percent=99.0), bounds)] == ["frozen update %"]


def test_an_alarm_of_one_step_alone_is_no_failure() -> None:
    bounds = Thresholds.shipped()
    once = run("delayed", 0, 2.0, probes=(probe(0, cosine=0.3), probe(1), probe(2)))
    assert first_alarm(once, bounds) is None
    twice = run("naive", 0, 2.0, probes=(probe(0), probe(1, cosine=0.3), probe(2, cosine=0.2)))
    found = first_alarm(twice, bounds)
    assert found is not None
    assert found.step == 1
    broken = probe(0, cosine=math.nan, tensors={("head", "x"): signals(non_finite=1.0)})
    found = first_alarm(run("naive-nan", 0, 2.0, stopped_at=0, probes=(broken,)), bounds)
    assert found is not None
    assert found.says == "NaN/Inf in head.x"


def test_early_warning_takes_the_middle_of_three_steps() -> None:
    healed = run("delayed", 0, 2.0, probes=(probe(0, cosine=0.1), probe(1), probe(2), probe(20, cosine=0.0)))
    assert early_warning(healed) == 0
    hurt = run("naive", 0, 2.0, probes=tuple(probe(step, cosine=0.5, ratio=2.0) for step in range(3)))
    assert early_warning(hurt) == pytest.approx(0.75)
    looks = tuple(probe(step, frozen_percent=95.0) for step in range(3))
    hurt_by_freezing = run("stored-e4m3", 0, 2.0, probes=looks)
    assert early_warning(hurt_by_freezing) == pytest.approx(0.95)
    lucky = run("stored-e4m3-stochastic", 0, 2.0, probes=hurt_by_freezing.probes)
    assert early_warning(lucky) == 0
    assert first_alarm(lucky, Thresholds.shipped()) is None
    assert first_alarm(hurt_by_freezing, Thresholds.shipped()) is not None
    full = run("delayed-nan", 0, 2.0, probes=tuple(probe(step, fill=0.9) for step in range(3)))
    assert early_warning(full) == pytest.approx(0.9)
    assert early_warning(run("naive-nan", 0, 2.0, stopped_at=1, probes=(probe(0),))) == 1


def test_ranks() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, math.inf]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert spearman([0, 1, 1, 2], [0, 1, 2, 3]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(spearman([1, 1], [1, 2]))
    runs = matrix()
    gaps = final_gaps(runs, [one for one in runs if one.recipe.name == "bf16"])
    assert gaps[:3] == [0, 0, 0]
    assert gaps[-1] == math.inf
    assert warning_rank(runs).runs == 12
    assert warning_rank([*runs, run("naive-nan", 0, 2.0, stopped_at=2)]).runs == 12
