"""Profiles: a deployment unlike the shipped terms is learnt from a few points, noise is not, and names stay in the folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.measured.serving.deployment import profile as serving_profile
from trilemma.measured.serving.deployment.bench_files import Point
from trilemma.measured.serving.deployment.points import bench_of
from trilemma.measured.serving.speed.figures import predict
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.timing import serving_terms
from trilemma.timing.eras import era_of
from trilemma.timing.machine import Machine

LOADS = [(isl, osl, load) for isl, osl in ((1024, 1024), (8192, 1024)) for load in (1, 4, 16, 64)]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def bench(points: list[Point]):
    plan = Plan(pools=(Pool(layout=Layout(tp=4), options=ServeOptions(context=9216)),))
    cluster = Cluster(accelerator=find("h200-sxm"), gpus=4)
    return bench_of(points, model=load_model("llama-3.1-70b-fp8"), cluster=cluster, plan=plan)


def points_under(factors: dict[str, float], *, noise: float = 0.0) -> list[Point]:
    """What a deployment whose terms are ``factors`` times the shipped ones would measure."""
    blank = [Point(isl=i, osl=o, concurrency=c, ttft_ms=100.0, tpot_ms=10.0) for i, o, c in LOADS]
    one = bench(blank)
    shipped = serving_terms.shipped().factors(one.engine, one.machine.accelerator, one.precision)
    said = predict(one, {term: value * factors.get(term, 1.0) for term, value in shipped.items()})
    said = said * np.exp(np.random.default_rng(1).normal(0, noise, said.shape)) * 1e3
    return [
        Point(isl=i, osl=o, concurrency=c, tpot_ms=float(said[2 * at]), ttft_ms=float(said[2 * at + 1]))
        for at, (i, o, c) in enumerate(LOADS)
    ]


def test_a_slow_host_is_learnt_from_eight_loads():
    points = points_under({"kernel": 1.6, "step": 2.0, "prefill_matmul": 0.8})
    found = serving_profile.calibrate(bench(points), serving_terms.shipped(), name="slow", points=points)
    assert found.better
    assert found.profile.before > 0.1
    assert found.profile.after < 0.05
    applied = found.profile.applied(serving_terms.shipped())
    key = found.profile.key
    assert applied.offsets[-1][key]["kernel"] > serving_terms.shipped().offsets[-1][key].get("kernel", 0.0)
    untouched = [other for other in applied.offsets[-1] if other != key]
    assert all(applied.offsets[-1][one] == serving_terms.shipped().offsets[-1][one] for one in untouched)


@pytest.mark.parametrize("card", ["nvidia-h200-sxm", "nvidia-h100-pcie-80gb", "nvidia-rtx-5090"])
def test_a_profile_multiplies_what_its_deployment_had_whether_measured_or_not(card: str):
    terms, precision = serving_terms.shipped(), "8-bit fp8"
    profile = serving_profile.Profile(
        name="p", engine="vllm", accelerator=card, precision=precision, offsets={"step": 0.5}, before=0.1, after=0.05
    )
    before = terms.factors("vllm", find(card), precision)
    after = profile.applied(terms).factors("vllm", find(card), precision)
    for term, factor in before.items():
        assert after[term] == pytest.approx(factor * (np.exp(0.5) if term == "step" else 1.0)), term


def test_points_that_agree_already_make_no_profile():
    points = points_under({})
    assert not serving_profile.calibrate(bench(points), serving_terms.shipped(), name="same", points=points).better


def test_error_bars_of_a_profile_hold_points_that_it_has_not_seen():
    """Noise of 5 % on TPOT and 10 % on TTFT: nine of ten further points lie inside, and the bars are no wider than double."""
    draw, inside, ends = np.random.default_rng(7), [], []
    quiet = points_under({"kernel": 1.6, "step": 2.0, "prefill_matmul": 0.8})
    for _ in range(6):
        noisy = [
            replace(
                one, tpot_ms=(one.tpot_ms or 0) * np.exp(draw.normal(0, 0.05)),
                ttft_ms=(one.ttft_ms or 0) * np.exp(draw.normal(0, 0.1)),
            )
            for one in quiet
        ]  # fmt: skip
        order = draw.permutation(len(noisy))
        seen, later = [noisy[at] for at in order[:6]], bench([noisy[at] for at in order[6:]])
        profile = serving_profile.calibrate(bench(seen), serving_terms.shipped(), name="bars", points=seen).profile
        said = serving_profile.predicted(later, serving_terms.shipped(), profile.offsets)
        bounds = [profile.own.bounds[str(figure)] for figure in later.quantity]
        ratios = zip(later.measured / said, bounds, strict=True)
        inside += [low <= ratio <= high for ratio, (low, high) in ratios]
        ends.append(profile.own.bounds["tpot"][1])
    assert np.mean(inside) >= 0.85
    assert np.median(ends) < np.exp(2 * 1.645 * 0.05)


@pytest.mark.parametrize("points", [2, 3, 5, 30])
def test_fewer_points_widen_the_error_bar(points: int):
    def high(count: int) -> float:
        loads = [Point(isl=1024 + at, osl=256, concurrency=4, tpot_ms=10.0) for at in range(count)]
        one = bench(loads)
        off = one.measured * np.exp(np.where(np.arange(count) % 2 == 0, 0.05, -0.05))
        return serving_profile.own_spread(one, off).bounds["tpot"][1]

    assert high(points) > high(2 * points) > np.exp(1.645 * 0.05)


@pytest.mark.parametrize(("figure", "value"), [("tpot_ms", 0.0115), ("ttft_ms", 0.2)])
def test_seconds_given_as_milliseconds_are_refused_with_their_row(figure: str, value: float):
    points = points_under({})
    points[4] = replace(points[4], **{figure: value})
    with pytest.raises(InputError, match=f"point 5 of 8 .8192/1024 tokens, 1 at once.: {figure} {value:g} cannot be"):
        bench(points)


def test_four_loads_are_too_few():
    points = points_under({})[:4]
    with pytest.raises(InputError, match="at least 5"):
        serving_profile.calibrate(bench(points), serving_terms.shipped(), name="few", points=points)


def test_a_profile_is_kept_and_found_again():
    points = points_under({"kernel": 1.5})
    profile = serving_profile.calibrate(bench(points), serving_terms.shipped(), name="kept", points=points).profile
    assert serving_profile.load(serving_profile.save(profile).stem) == profile


@pytest.mark.parametrize("name", ["../up", "", "A", "a/b", ".hidden", "x" * 65])
def test_names_stay_inside_the_folder(name: str):
    with pytest.raises(InputError, match="not a name"):
        serving_profile.load(name)


@pytest.mark.parametrize(
    "change",
    [
        {"own": {"served": "x", "bounds": {"tpot": [1.2, 1.1]}, "loads": {}}},
        {"own": 3},
        {"schema": "other"},
        {"offsets": {"kernel": 50.0}},
        {"offsets": {"x": 1}},
        {"a": 1},
        {"precision": 3},
        {"engine": ["vllm"]},
        {"offsets": {"kernel": 10**400}},
    ],
)
def test_a_broken_profile_is_refused(change: dict[str, object]):
    points = points_under({"kernel": 1.5})
    path = serving_profile.save(
        serving_profile.calibrate(bench(points), serving_terms.shipped(), name="bad", points=points).profile
    )
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match="is not a profile"):
        serving_profile.load("bad")


def fit_tpot(capsys: pytest.CaptureFixture[str], *more: str, load: str = "16") -> tuple[float, float]:
    """TPOT, and how wide its error bar is."""
    words = ["fit", "llama-3.1-70b-fp8", "--gpu", "h200-sxm:4", "--isl", "1024", "--osl", "1024", "--concurrency", load]
    assert main([*words, "--json", *more]) == 0
    tpot = json.loads(capsys.readouterr().out)["speed"]["tpot_ms"]
    return tpot["value"], tpot["high"] / tpot["low"]


def test_calibrate_then_fit_with_the_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    points = points_under({"kernel": 1.6, "step": 2.0})
    table = tmp_path / "measured.csv"
    lines = [f"{p.isl},{p.osl},{p.concurrency},{p.ttft_ms},{p.tpot_ms}" for p in points]
    table.write_text("isl,osl,concurrency,ttft_ms,tpot_ms\n" + "\n".join(lines))
    words = [
        "calibrate",
        "serving",
        str(table),
        "--model",
        "llama-3.1-70b-fp8",
        "--gpu",
        "h200-sxm:4",
        "--name",
        "mine",
    ]
    assert main(words) == 0
    assert "after" in capsys.readouterr().out
    measured = next(p.tpot_ms for p in points if (p.isl, p.concurrency) == (1024, 16))
    (before, wide), (after, narrow) = fit_tpot(capsys), fit_tpot(capsys, "--profile", "mine")
    assert abs(after / measured - 1) < 0.05 < abs(before / measured - 1)
    assert narrow < wide
    assert fit_tpot(capsys, "--profile", "mine", load="200")[1] == pytest.approx(
        fit_tpot(capsys, load="200")[1], rel=1e-3
    )


def test_an_exported_plan_is_settled_by_its_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["fit", "llama-3.1-70b-fp8", "--gpu", "h200-sxm:4", "--isl", "1024", "--osl", "1024", "--concurrency", "16"]
    assert main([*words, "--json"]) == 0
    (tmp_path / "fit.json").write_text(capsys.readouterr().out)
    assert main(["export", str(tmp_path / "fit.json"), "--to", "vllm", "-o", str(tmp_path / "out")]) == 0
    prediction = tmp_path / "out" / "prediction.json"
    said = json.loads(prediction.read_text())
    assert "--max-concurrency 16" in said["benchmark"]
    assert "--random-input-len 1024" in (tmp_path / "out" / "benchmark.sh").read_text()
    result = {
        "completed": 160, "num_prompts": 160, "max_concurrency": 16, "total_input_tokens": 163_840,
        "total_output_tokens": 163_840, "mean_ttft_ms": said["predicted"]["ttft_ms"]["value"],
        "mean_tpot_ms": said["predicted"]["tpot_ms"]["value"],
    }  # fmt: skip
    bench_file = tmp_path / "bench.json"
    for tpot, code in ((result["mean_tpot_ms"], 0), (3 * result["mean_tpot_ms"], 1)):
        bench_file.write_text(json.dumps({**result, "mean_tpot_ms": tpot}))
        capsys.readouterr()
        assert main(["settle", str(bench_file), "--prediction", str(prediction), "--name", "s", "--json"]) == code
        answer = json.loads(capsys.readouterr().out)
        assert not answer["fitted"]
        tpot_score = next(score for score in answer["scores"] if score["figure"] == "tpot_ms")
        assert tpot_score["inside"] is (code == 0)
    assert len(serving_profile.load("s").points) == 2


def test_settle_refuses_what_is_no_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "p.json").write_text('{"schema": "trilemma/prediction@1"}')
    (tmp_path / "r.csv").write_text("isl,osl,concurrency,tpot_ms\n128,64,2,9\n")
    assert main(["settle", str(tmp_path / "r.csv"), "--prediction", str(tmp_path / "p.json")]) == 2
    assert "not a prediction" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["0.15.0", "0.24.0"])
def test_what_no_term_tells_holds_where_a_prediction_is_settled(version: str) -> None:
    """Sums at half rate on a GeForce, and the PCIe of old releases (data/coefficients/engine_eras.toml): as in the answer."""
    engine = EngineRef(name="vllm", version=version)
    plan = Plan(engine=engine, pools=(Pool(layout=Layout(tp=2), options=ServeOptions(context=8192)),))
    cluster, model = Cluster(accelerator=find("rtx-5090"), gpus=2), load_model("llama-3.1-8b")
    one = bench_of(
        [Point(isl=1024, osl=128, concurrency=8, ttft_ms=900.0, tpot_ms=30.0)], model=model, cluster=cluster, plan=plan
    )
    answer = Machine.serving(cluster, work=one.work, engine="vllm", version=version)
    era = era_of("vllm", version, cluster.accelerator)
    said = serving_profile.predicted(one, serving_terms.shipped(), {}, era=era)
    same = dict.fromkeys(serving_terms.shipped().factors("vllm", cluster.accelerator, one.precision), 1.0)
    wanted = predict(replace(one, machine=one.machine.with_coefficients(answer.coefficients)), same)
    assert said == pytest.approx(wanted, rel=1e-12)
    plain = predict(one, serving_terms.shipped().factors("vllm", cluster.accelerator, one.precision))
    assert abs(said[1] / plain[1] - 1) > 0.02
