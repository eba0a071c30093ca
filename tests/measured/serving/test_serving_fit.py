"""The fit of serving terms finds what made the figures, leaves a bound where they ask for it, shares out by the priors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.measured.serving.deployment.bench_files import Point
from trilemma.measured.serving.deployment.points import bench_of
from trilemma.measured.serving.speed.figures import SpeedFigures, parts_of, predict
from trilemma.measured.serving.speed.fit import fit
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, Plan, Pool, ServeOptions
from trilemma.timing.coefficients import headroom
from trilemma.timing.serving_terms import LEVELS, keys_of, priors

LOADS = [(isl, osl, load) for isl, osl in ((1024, 1024), (8192, 1024)) for load in (1, 4, 16, 64, 256)]


def made_by(factors: dict[str, float], *, model: str = "gpt-oss-120b", card: str = "h200-sxm") -> SpeedFigures:
    """Figures that a deployment would measure whose terms are ``factors`` times the spec sheet."""
    plan = Plan(pools=(Pool(layout=Layout(tp=2), options=ServeOptions(context=9216)),))
    points = [Point(isl=i, osl=o, concurrency=c, ttft_ms=100.0, tpot_ms=10.0) for i, o, c in LOADS]
    bench = bench_of(points, model=load_model(model), cluster=Cluster(accelerator=find(card), gpus=2), plan=plan)
    neutral = dict.fromkeys(priors().terms, 1.0)
    return replace(bench, measured=predict(bench, neutral | factors))


def off(bench: SpeedFigures, found) -> float:
    factors = found.factors(bench.engine, bench.machine.accelerator, bench.precision)
    return float(np.median(np.abs(np.log(predict(bench, factors) / bench.measured))))


def test_what_made_the_figures_is_found_from_the_spec_sheet_on():
    bench = made_by({"step": 2.5, "experts_stream": 0.7, "queue": 3.0})
    assert off(bench, fit([bench], priors())) < 0.02


def test_routing_leaves_its_bound_where_figures_ask_for_it():
    # even routing is the most that there is: a difference taken beyond it shows nothing, and a fit would stay there
    bench = made_by({"routing_evenness": 0.2})
    found = fit([bench], priors())
    assert found.factors(bench.engine, bench.machine.accelerator, bench.precision)["routing_evenness"] < 0.6


def test_no_share_of_a_bandwidth_is_fitted_beyond_all_of_it():
    bench = made_by({"cache_stream": 1.0})
    bench = replace(bench, measured=bench.measured * 0.3)  # faster than the hardware is
    room = headroom(bench.machine.coefficients)
    assert room["routing_evenness"] == 0.0
    assert set(room) == {"cache_stream", "link", "routing_evenness"}
    factors = fit([bench], priors()).factors(bench.engine, bench.machine.accelerator, bench.precision)
    for term, most in room.items():
        assert factors[term] <= np.exp(most) + 1e-9, term


def test_levels_share_an_offset_as_their_priors_say():
    """Of one deployment nothing tells its levels apart: each takes the square of its width of the whole."""
    bench = made_by({"step": 2.0})
    found, widths = fit([bench], priors()), priors().widths["step"]
    keys = keys_of(bench.engine, bench.machine.accelerator, bench.precision)
    shares = {at: found.offsets[at][keys[at]]["step"] for at, width in enumerate(widths) if width > 0}
    for at, share in shares.items():
        assert share == pytest.approx(
            widths[at] ** 2 / sum(width**2 for width in widths) * sum(shares.values()), rel=1e-6
        )
    for at, width in enumerate(widths):
        assert ("step" in found.offsets[at].get(keys[at], {})) == (width > 0), LEVELS[at]


def test_figures_of_one_load_are_one_question():
    bench = made_by({"step": 2.0})
    parts = parts_of(bench)
    assert len(parts) == 1
    assert len(parts[0].asked.at) * 2 == len(bench.at)
    factors = dict.fromkeys(priors().terms, 1.3)
    np.testing.assert_allclose(parts[0].predict(factors), predict(bench, factors), rtol=1e-12)
