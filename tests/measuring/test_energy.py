"""Energy over a window: the integral, and every way in which there is none."""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.asking import screen

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.measuring.energy.sampler import PowerSampler, ProcessorPower
from trilemma.measuring.energy.window import CardPower, by_card, energy_over

TENTHS = [at / 10 for at in range(101)]


def card(name: str, watts, times=TENTHS) -> CardPower:
    drawn = tuple(watts(at) if callable(watts) else watts for at in times)
    return CardPower(card=name, times_s=tuple(times), watts=drawn)


def test_a_ramp_is_integrated_exactly_and_cards_are_summed() -> None:
    ramp, level = card("0", lambda at: 100 + 20 * at), card("1", 300.0)
    found = energy_over([ramp, level], start_s=2.03, end_s=7.51, cards=2)
    # the integral of 100 + 20 t from 2.03 to 7.51 s, and 300 W throughout
    by_hand = [100 * 5.48 + 10 * (7.51**2 - 2.03**2), 300 * 5.48]
    assert [one.joules for one in found.each] == pytest.approx(by_hand)
    assert found.joules == pytest.approx(sum(by_hand))
    assert found.mean_w == pytest.approx(sum(by_hand) / 5.48)
    assert found.fault is None
    assert [one.samples for one in found.each] == [55, 55]
    assert found.each[0].longest_gap_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("power", "window", "cards", "fault", "words"),
    [
        ([], (1, 9), 1, "no_samples", "no card"),
        ([card("0", 300.0)], (1, 9), 2, "cards_missing", "1 of 2 cards"),
        ([card("0", 300.0), card("1", 300.0)], (1, 9), 1, "cards_missing", "2 of 1 cards"),
        ([card("0", 300.0)], (1, 13), 1, "not_covered", "-3.00 s"),
        ([card("0", 300.0)], (-3, 9), 1, "not_covered", "+3.00"),
        ([card("0", 3e2, [0, 1, 2, 5, 6, 7])], (0.5, 6.5), 1, "gap", "3.00 s without a sample"),
        ([card("0", math.nan)], (1, 9), 1, "not_a_power", "nan W"),
        ([card("0", lambda at: 300.0 - 400 * (at == 5))], (1, 9), 1, "not_a_power", "-100 W"),
        ([card("0", 3e5)], (1, 9), 1, "not_a_power", "300000 W"),
        ([card("0", 300.0, [0, 1, 2, 1.5, 3, 4])], (0, 4), 1, "clock_backwards", "at 2 s"),
        ([card("0", 300.0)], (1, 1.15), 1, "window_too_short", "1 samples within 0.15 s"),
        ([card("0", 300.0)], (4, 4), 1, "window_too_short", "from 4 to 4 s"),
    ],
)
def test_half_a_sum_is_no_figure(power, window, cards, fault, words) -> None:
    found = energy_over(power, start_s=window[0], end_s=window[1], cards=cards)
    assert (found.joules, found.mean_w, found.fault) == (None, None, fault)
    assert words in found.detail


def test_samples_become_series_of_each_card() -> None:
    assert by_card([(0.0, {"0": 1.0, "1": 2.0}), (1.0, {"1": 3.0})]) == (
        CardPower(card="0", times_s=(0.0,), watts=(1.0,)),
        CardPower(card="1", times_s=(0.0, 1.0), watts=(2.0, 3.0)),
    )


class Told:
    """A source that tells 250 W of each of two cards, so often; then it fails."""

    cards = 2

    def __init__(self, often: int = 10**9) -> None:
        self.told, self.often, self.enough = 0, often, threading.Event()

    def watts(self) -> Mapping[str, float]:
        self.told += 1
        if self.told > self.often:
            self.enough.set()
            raise RuntimeError("the driver is gone")
        if self.told > 20:
            self.enough.set()
        return {"0": 250.0, "1": 250.0}


def test_a_sampler_beside_a_run() -> None:
    source = Told()
    with PowerSampler(source, every_s=0.002) as power:
        assert source.enough.wait(20)
    found = power.window()
    assert found.fault is None
    assert found.mean_w == pytest.approx(500.0)
    assert found.joules == pytest.approx(500.0 * found.seconds)
    assert power.cards == 2


def test_a_source_that_fails_leaves_no_figure_and_says_why() -> None:
    source = Told(often=2)
    with PowerSampler(source, every_s=0.002) as power:
        assert source.enough.wait(20)
    found = power.window()
    assert found.joules is None
    assert "the driver is gone" in found.detail


def counter(folder: Path, name: str, micro_joules: int, wraps: int = 10**9) -> Path:
    one = folder / name
    one.mkdir(exist_ok=True)
    (one / "energy_uj").write_text(f"{micro_joules}\n")
    (one / "max_energy_range_uj").write_text(f"{wraps}\n")
    return one


def test_the_processor_by_its_counters(tmp_path: Path) -> None:
    times = iter([0.0, 0.0, 2.0, 2.0, 3.0, 3.0])
    one, two = counter(tmp_path, "intel-rapl:0", 5_000_000), counter(tmp_path, "intel-rapl:1", 999_000_000)
    counter(tmp_path, "intel-rapl:0:0", 77)  # its cores are part of package 0
    source = ProcessorPower(tmp_path, now=lambda: next(times))
    assert source.cards == 2
    counter(tmp_path, one.name, 105_000_000)
    counter(tmp_path, two.name, 19_000_000)  # wrapped at a thousand joules
    assert source.watts() == {"intel-rapl:0": pytest.approx(50.0), "intel-rapl:1": pytest.approx(10.0)}
    (one / "energy_uj").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        source.watts()


def test_a_machine_that_tells_no_power_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no power is told here"):
        ProcessorPower(tmp_path / "none")


def test_a_run_keeps_its_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Told()
    monkeypatch.setattr("trilemma.runs.recording.power_source", lambda: source)
    monkeypatch.setattr("trilemma.measuring.energy.sampler.EVERY_S", 0.002)
    with tl.record("warm", ledger=tmp_path / "runs.db", energy=True) as run:
        run._power._every_s = 0.002
        assert source.enough.wait(20)
    assert run.run.figures["mean_w"] == pytest.approx(500.0)
    assert run.run.figures["energy_j"] == pytest.approx(500.0 * run._power.window().seconds, rel=0.5)
    failing = Told(often=0)
    monkeypatch.setattr("trilemma.runs.recording.power_source", lambda: failing)
    with tl.record("dark", ledger=tmp_path / "runs.db", energy=True) as run:
        assert failing.enough.wait(20)
    assert "energy_j" not in run.run.figures
    with tl.record("after", ledger=tmp_path / "runs.db") as other:
        events = other._ledger.events(run.run.id)
    assert "no energy: no_samples" in events[0].what
    assert "the driver is gone" in events[0].what


def test_a_server_under_load_with_what_its_cards_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trilemma.measuring.energy.sampler.power_source", Told)
    server = Path(__file__).parent / "servers.py"
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    load = f"measure serve --url http://127.0.0.1:{port} --isl 32 --osl 8 --requests 12 --concurrency 4 --energy"
    behind = f"-- {sys.executable} {server} {port} good 0.15 0.02"
    found = json.loads(screen(f"{load} --cards 2 --json {behind}"))
    assert found["energy"]["mean_w"] == pytest.approx(500.0)
    assert found["energy"]["seconds"] == pytest.approx(found["seconds"])
    assert found["j_per_output_token"] == pytest.approx(500.0 / found["output_tokens_per_s"], rel=1e-4)
    told = screen(f"{load} --cards 3 {behind}")
    assert "no energy is told for 3 cards: 2 of 3 cards told their power" in told


def test_cards_are_those_of_the_energy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "serve", "--cards", "2"]) == 2
    assert "--energy; give that too" in capsys.readouterr().err
