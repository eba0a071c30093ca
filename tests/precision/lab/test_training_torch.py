"""Short runs: the lab's phenomena where they show within a few steps."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from trilemma.precision.lab.alarms import Thresholds, first_alarm  # noqa: E402
from trilemma.precision.lab.corpus import generated_corpus  # noqa: E402
from trilemma.precision.lab.model import TinyTransformer, make_outliers, spared_layers  # noqa: E402
from trilemma.precision.lab.numerics import Numerics  # noqa: E402
from trilemma.precision.lab.recipes import RECIPES, LabRecipe  # noqa: E402
from trilemma.precision.lab.records import LabRun, Regime  # noqa: E402
from trilemma.precision.lab.train import train  # noqa: E402

SMALL = Regime(steps=6, width=32, layers=2, heads=2, batch=4, context=32, learning_rate_warm_up=1)
LOUD = Regime(steps=6, width=32, layers=2, heads=2, batch=4, context=32, outlier_gain=300.0, learning_rate_warm_up=1)


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(recipe: str | LabRecipe, regime: Regime = SMALL, *, seed: int = 0) -> LabRun:
    chosen = RECIPES[recipe] if isinstance(recipe, str) else recipe
    return train(chosen, regime, seed=seed, corpus=generated_corpus())


def model_of(regime: Regime, *, seed: int = 0) -> TinyTransformer:
    torch.manual_seed(seed)
    numerics = Numerics(RECIPES["bf16"], seed=seed)
    numerics.shadow = True
    return TinyTransformer(regime, 64, numerics)


def test_outliers_leave_the_function_alone() -> None:
    quiet, loud = model_of(SMALL), model_of(SMALL)
    make_outliers(loud, 300.0)
    characters = torch.randint(0, 64, (4, 33), generator=torch.Generator().manual_seed(1))
    losses = [model(characters[:, :-1], characters[:, 1:]).item() for model in (quiet, loud)]
    assert losses[1] == pytest.approx(losses[0], abs=2e-3)
    assert loud.norm.weight.max().item() == pytest.approx(300)


def test_the_reference_learns_and_repeats() -> None:
    one, other = run("bf16"), run("bf16")
    assert one.losses == other.losses
    assert one.losses[-1] < one.losses[0] - 0.2
    assert one.stopped_at is None
    assert math.isfinite(one.held_out_loss)
    assert run("bf16", seed=1).losses != one.losses


def test_every_recipe_runs() -> None:
    for name, recipe in RECIPES.items():
        found = run(recipe, Regime(steps=2, width=32, layers=1, heads=2, batch=2, context=16))
        assert len(found.losses) == 2 or found.stopped_at is not None, name
        assert found.probes[0].loss == pytest.approx(found.probes[0].shadow_loss, abs=0.2), name
        assert (found.low_precision_share > 0) == recipe.low_precision or recipe.scope == "all but head and ends", name


def test_plain_casts_flush_gradients_and_scales_keep_them() -> None:
    flushed, kept = run("naive").probes[0], run("current").probes[0]
    assert flushed.worst("g", "underflows_percent", lowest=False)[0] > 80
    assert flushed.gradient.cosine < 0.95
    assert kept.worst("g", "underflows_percent", lowest=False)[0] < 5
    assert kept.gradient.cosine > 0.99
    assert kept.worst("g", "sqnr_db", lowest=True)[0] > 20


def test_overflow_to_nan_names_its_tensor() -> None:
    stopped = run("delayed-nan", LOUD)
    assert stopped.stopped_at is not None
    assert stopped.stopped_at < 5
    alarm = first_alarm(stopped, Thresholds.shipped())
    assert alarm is not None
    assert alarm.signal == "NaN/Inf"
    assert alarm.where == "block0.attention.qkv.x"
    saturating = run("delayed", LOUD)
    assert saturating.stopped_at is None
    assert saturating.probes[0].worst("x", "overflows_percent", lowest=False)[0] > 0.1


def test_a_stop_between_looks_is_looked_at_again() -> None:
    short_warm_up = LabRecipe(
        name="x",
        says="",
        forward="fp8_e4m3",
        backward="fp8_e5m2",
        scaling="delayed",
        overflow="nan",
        warm_up_steps=6,
    )
    regime = Regime(steps=12, width=32, layers=2, heads=2, batch=4, context=32, outlier_gain=300.0, probe_every=1000)
    stopped = run(short_warm_up, regime)
    assert stopped.stopped_at is not None
    assert stopped.stopped_at >= 6
    assert [probe.step for probe in stopped.probes] == [0, 1, 2, 3, 4, stopped.stopped_at]
    assert [probe.applied for probe in stopped.probes] == [False] * 5 + [True]
    assert any(signals.non_finite_percent > 0 for signals in stopped.probes[-1].tensors.values())
    assert len(stopped.losses) == stopped.stopped_at + 1


def test_weights_stored_in_fp8_freeze_and_stochastic_rounding_frees_them() -> None:
    slow = Regime(
        steps=2, width=32, layers=1, heads=2, batch=4, context=32, learning_rate=2e-4, learning_rate_warm_up=1
    )
    frozen = {
        name: run(name, slow).probes[0].frozen_percent
        for name in ("stored-e4m3", "stored-e4m3-stochastic", "bf16-pure")
    }
    assert frozen["stored-e4m3"] > 95
    assert frozen["stored-e4m3-stochastic"] < frozen["stored-e4m3"] - 2
    assert 5 < frozen["bf16-pure"] < frozen["stored-e4m3"]
    assert run("current", slow).probes[0].frozen_percent is None


def test_dynamic_loss_scaling_skips_what_overflows() -> None:
    eager = LabRecipe(name="x", says="", forward="fp16", backward="fp16", loss_scale=2.0**28, dynamic_loss_scale=True)
    skipping = run(eager, Regime(steps=20, width=32, layers=1, heads=2, batch=2, context=16))
    assert skipping.stopped_at is None
    assert 5 < skipping.skipped_steps < 20
    stiff = run(LabRecipe(name="x", says="", forward="fp16", backward="fp16", loss_scale=2.0**40))
    assert stiff.stopped_at == 0


def test_spared_layers_by_scope() -> None:
    model = model_of(Regime(width=32, layers=3, heads=2))
    assert spared_layers(model, "all") == []
    assert spared_layers(model, "all but head") == ["head"]
    narrow = {name for block in (0, 1, 2) for name in (f"block{block}.attention.qkv", f"block{block}.attention.out")}
    assert not narrow & set(spared_layers(model, "attention"))
    assert len(spared_layers(model, "attention")) == 7
    ends = spared_layers(model, "all but head and ends")
    assert "head" in ends
    assert not any(name.startswith("block1.") for name in ends)
    assert len(ends) == 9
