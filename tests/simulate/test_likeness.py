"""A trace that looks like another: its statistics, and none of its requests."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.simulation.serving.likeness import TraceLikeness
from trilemma.simulation.serving.traffic import Arrival


def bursty(requests: int = 6000) -> list[Arrival]:
    """Arrivals in bursts, faster in the second half; prompts and outputs that go together."""
    random = np.random.default_rng(4)
    gaps = random.gamma(0.2, 5.0, requests) * np.where(np.arange(requests) < requests // 2, 1.0, 0.25)
    prompts = random.lognormal(7.0, 0.8, requests)
    outputs = prompts**0.5 * random.lognormal(1.0, 0.3, requests)
    lengths = np.maximum(np.rint([prompts, outputs]), 1).astype(int).T.tolist()
    return [Arrival(time, isl, osl) for time, (isl, osl) in zip(gaps.cumsum().tolist(), lengths, strict=True)]


def table(arrivals) -> np.ndarray:
    return np.array([(one.arrival_s, one.isl, one.osl) for one in arrivals], dtype=float)


def test_it_has_the_statistics_of_the_original() -> None:
    real = table(bursty())
    like = table(TraceLikeness.of(bursty()).drawn(6000, seed=1))
    assert np.all(np.diff(like[:, 0]) >= 0)
    assert like[-1, 0] == pytest.approx(real[-1, 0], rel=0.02)
    for column in (1, 2):
        for percentile in (10, 50, 90, 99):
            assert np.percentile(like[:, column], percentile) == pytest.approx(
                np.percentile(real[:, column], percentile), rel=0.06
            )
    correlations = [np.corrcoef(np.log(one[:, 1]), np.log(one[:, 2]))[0, 1] for one in (real, like)]
    assert correlations[1] == pytest.approx(correlations[0], abs=0.05)
    middle = real[3000, 0]
    assert np.mean(like[:, 0] < middle) == pytest.approx(0.5, abs=0.02)  # the slow half took as long
    crowds = [np.bincount((one[:, 0] // 10).astype(int)) for one in (real, like)]
    assert crowds[1].var() / crowds[1].mean() == pytest.approx(crowds[0].var() / crowds[0].mean(), rel=0.35)


def test_none_of_its_requests_is_in_it_and_the_same_seed_draws_the_same() -> None:
    likeness = TraceLikeness.of(bursty())
    first, again, other = (list(likeness.drawn(500, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert not {one.arrival_s for one in first} & {one.arrival_s for one in bursty()}
    assert len(list(likeness.drawn(15_000, seed=1))) == 15_000  # its time over again


def test_too_few_requests_have_no_statistics() -> None:
    with pytest.raises(InputError, match="at least 50"):
        TraceLikeness.of(bursty()[:20])
    with pytest.raises(InputError, match="over time"):
        TraceLikeness.of([Arrival(0.0, 10, 10)] * 100)


def test_the_command_writes_what_the_simulation_reads(tmp_path, capsys) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "like.csv"
    trace.write_text(
        "\n".join(json.dumps({"arrival": one.arrival_s, "input": one.isl, "output": one.osl}) for one in bursty(300))
    )
    assert main(["simulate", "traffic", str(trace), "-o", str(out)]) == 0
    assert "300 requests like those of trace.jsonl" in capsys.readouterr().out
    assert (
        main(["simulate", "serving", "llama-3.1-8b", "--gpu", "h100-sxm", "--trace", str(out), "--no-bounds", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["requests"] == 300
    assert main(["simulate", "traffic", str(trace), "-o", str(tmp_path / "no" / "where.csv")]) == 2
