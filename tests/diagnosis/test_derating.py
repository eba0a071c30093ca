"""Clocks that fall while a card works: told where they stay down, with the line; not where a card waits or comes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trilemma.diagnosis.findings import Finding
from trilemma.diagnosis.judging import judge


def dmon(path: Path, samples: list[tuple[float, float, float, float]], *, violation: str = "0") -> Path:
    """``nvidia-smi dmon -s puc`` of one GPU: clock, utilisation, degrees and watts of each sample."""
    lines = [
        "# gpu    pwr  gtemp     sm   mclk   pclk  pviol  tviol",
        "# Idx      W      C      %    MHz    MHz      %   bool",
    ]
    lines += [
        f"    0  {watts:5.0f}  {degrees:5.0f}  {busy:5.0f}   2619  {clock:5.0f}  {violation:>5}      0"
        for clock, busy, degrees, watts in samples
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def series(
    clocks: list[tuple[int, float]], *, busy: float = 97, degrees: float = 60, watts: float = 650
) -> list[tuple[float, float, float, float]]:
    """So many samples at each clock, with the noise of a real one, waiting in every twelfth."""
    rng, found = np.random.default_rng(7), []
    for count, clock in clocks:
        for at in range(count):
            waits = at % 12 == 0
            found.append((345 if waits else clock * rng.normal(1, 0.006), 3 if waits else busy, degrees, watts))
    return found


def derated(path: Path) -> list[Finding]:
    return [one for one in judge([path]).findings if one.id == "gpu.derated"]


def test_a_card_that_came_down_is_told_with_the_line_and_what_it_costs(tmp_path: Path) -> None:
    hot = [*series([(400, 1980.0)]), *series([(400, 1500.0)], degrees=87, watts=520)]
    (found,) = derated(dmon(tmp_path / "dmon.txt", hot))
    assert found.severity == "warning"
    assert "silently" in found.claim
    assert found.evidence[0].line == pytest.approx(403, abs=25)
    assert (found.expected, found.observed) == ("1,980 MHz", "1,500 MHz") or "1,9" in (found.expected or "")
    assert "heat" in (found.fix or "")
    assert found.predicted_effect is not None
    assert found.predicted_effect.startswith("12% to 24%")


def test_a_driver_that_tells_a_reason_is_no_silence(tmp_path: Path) -> None:
    capped = [*series([(300, 1980.0)]), *series([(300, 1700.0)], watts=400)]
    (found,) = derated(dmon(tmp_path / "dmon.txt", capped, violation="37"))
    assert "with violations of its limits told" in found.claim
    assert "power limit" in (found.fix or "")


@pytest.mark.parametrize(
    "clocks",
    [
        [(800, 1980.0)],
        [(300, 1980.0), (200, 1500.0), (300, 1980.0)],
        [(300, 1500.0), (300, 1980.0)],
        [(300, 1980.0), (300, 1950.0)],
        [(40, 1980.0), (40, 1500.0)],
    ],
)
def test_noise_recovery_warming_up_small_steps_and_short_series_are_none(
    tmp_path: Path, clocks: list[tuple[int, float]]
) -> None:
    assert derated(dmon(tmp_path / "dmon.txt", series(clocks))) == []


def test_clocks_of_a_card_that_waits_mean_nothing(tmp_path: Path) -> None:
    idle = [*series([(300, 1980.0)]), *((345.0, 2.0, 40.0, 90.0) for _ in range(400))]
    assert derated(dmon(tmp_path / "dmon.txt", idle)) == []


def query(path: Path, samples: list[tuple[float, float, float, float]], *, reason: str = "Not Active") -> Path:
    """``nvidia-smi --query-gpu=timestamp,index,… --format=csv -l 1`` of two GPUs, the second of which keeps its clock."""
    lines = [
        "timestamp, index, utilization.gpu [%], clocks.current.sm [MHz], temperature.gpu, power.draw [W],"
        " clocks_event_reasons.hw_thermal_slowdown"
    ]
    for clock, busy, degrees, watts in samples:
        for gpu, at in ((0, clock), (1, 1980.0 if busy > 50 else 345.0)):
            lines.append(
                f"2026/11/30 10:00:00.000, {gpu}, {busy:.0f} %, {at:.0f} MHz, {degrees:.0f}, {watts:.2f} W, {reason}"
            )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_csv_of_nvidia_smi_tells_it_too(tmp_path: Path) -> None:
    hot = [*series([(400, 1980.0)]), *series([(400, 1500.0)], degrees=87, watts=520)]
    (found,) = derated(query(tmp_path / "gpu.csv", hot))
    assert found.claim.startswith("GPU 0 works at")
    assert "silently" in found.claim
    assert found.evidence[0].line == pytest.approx(802, abs=50)
    (told,) = derated(query(tmp_path / "told.csv", hot, reason="Active"))
    assert "silently" not in told.claim
    assert not derated(query(tmp_path / "steady.csv", series([(800, 1980.0)])))
