"""The screen of a recommendation says what its document says, and what is not counted."""

from __future__ import annotations

import trilemma as tl


def test_the_screen_names_the_first_choice_and_every_figure_of_it() -> None:
    answer = tl.recommend("llama-3.1-8b", isl=1024, osl=128, include=["l4", "rtx-4090"])
    first, second = answer.choices
    lines = answer.show(width=160).splitlines()
    assert f"take {first.gpus} x {first.card.name}, ${first.usd_per_hour.value:,.2f} an hour" in " ".join(lines[:3])  # type: ignore[union-attr]
    for choice in (first, second):
        row = next(line for line in lines if line.startswith(f"{choice.gpus} x {choice.card.name}"))
        speed = choice.estimate.speed
        assert speed is not None
        assert speed.ttft_s is not None
        assert speed.tpot_s is not None
        assert f"{speed.ttft_s.interval.value * 1e3:,.3g} ms" in row
        assert f"{speed.tpot_s.interval.value * 1e3:,.3g} ms" in row
        assert choice.watts is not None
        assert f"  {choice.watts.value / 1e3:,.2f}  " in row
    told = " ".join(" ".join(lines[-3:]).split())
    assert "kW are those that cards draw under this load, hosts and cooling apart" in told
    assert first.watts is not None
    assert f"the first {first.watts.value:,.0f} W ({first.watts.low:,.0f} – {first.watts.high:,.0f})" in told


def test_none_is_told_as_none() -> None:
    answer = tl.recommend("llama-3.1-405b", isl=1024, osl=128, include=["l4"], max_gpus=1)
    assert not answer.choices
    assert "none of 1 card does it within the limits" in " ".join(answer.show(width=160).split())
