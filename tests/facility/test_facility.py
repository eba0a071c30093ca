"""A building for cards: units that do not mix, and the arithmetic of public claims done again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.facilities.owning import Purchase, rent_or_buy, usd_per_million_tokens
from trilemma.facilities.units import KilowattHours, Kilowatts, read_power
from trilemma.report.schemas import schema_of


def facility(what: Any = "h100-sxm:64", **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = tl.facility(what, **options).to_dict()
    return found


def test_power_and_energy_do_not_add_up() -> None:
    power, energy = Kilowatts(kw=2.0, of="gpu"), KilowattHours(kwh=5.0)
    with pytest.raises(InputError, match=r"power \(kW\) and energy \(kWh\) do not add up"):
        power + energy  # type: ignore[operator]
    with pytest.raises(InputError, match=r"energy \(kWh\) and power \(kW\) do not add up"):
        energy + power  # type: ignore[operator]
    with pytest.raises(InputError, match="kW per gpu and kW per rack do not add up"):
        power + Kilowatts(kw=1.0, of="rack")
    with pytest.raises(InputError, match="kW per gpu does not feed kW per rack"):
        power.holds(Kilowatts(kw=1.0, of="rack"))
    assert power.over(24) == KilowattHours(kwh=48.0)
    assert (energy + power.over(1)).at(0.1) == pytest.approx(0.7)


def test_words_of_power() -> None:
    assert read_power("700W", name="watts", of="gpu").kw == pytest.approx(0.7)
    assert read_power("2.17 kW/GPU", name="watts", of="gpu").kw == 2.17
    assert read_power("1.5MW per site", name="x", of="site").kw == 1500
    for stated, why in (
        ("40kWh", "is energy, and power is asked for"),
        ("40", "has no unit"),
        ("2.17kW/GPU", "is per gpu, and a figure per rack is asked for"),
        ("40kW/acre", "is per acre"),
        ("forty", "is no power"),
    ):
        with pytest.raises(InputError, match=why):
            read_power(stated, name="rack_kw", of="rack")


def test_what_a_better_pue_saves() -> None:
    """1.52 to 1.38 is said to save 2 million a year, at 0.8 a kWh: 2,038 kW of IT, which nobody said."""
    found = facility(watts="540W", pue=1.52, better_pue=1.38, usd_per_kwh=0.8)
    saved = found["pue_saved"]
    assert saved["kwh"] == pytest.approx(0.14 * found["power"]["it_kw"] * 8760, rel=1e-4)
    assert 2e6 / (saved["usd"] / found["power"]["it_kw"]) == pytest.approx(2038, rel=1e-3)


def test_a_rack_of_twenty_kilowatts() -> None:
    """With all that stands around them a B200 or B300 takes 2.17 kW and an H100 1.73 (InferenceX): fewer of them, not more."""
    rack = Kilowatts(kw=20.0, of="rack")
    assert int(rack.holds(Kilowatts(kw=2.17, of="gpu"))) == 9
    assert int(rack.holds(Kilowatts(kw=1.73, of="gpu"))) == 11
    found = facility("b300-sxm:16", rack_kw="20kW")
    assert (found["racks"]["nodes_per_rack"], found["racks"]["racks"]) == (1, 2)
    none = tl.facility("b300-sxm:16", rack_kw="10kW")
    assert not none.fits
    assert "a node takes 14.5 kW" in none.cooling.reason


def test_which_cooling_carries_what() -> None:
    """Eight B300 are sold for air (DGX B300); a rack of 72 GB300 is not, and is not asked to be immersed either."""
    assert tl.facility("b300-sxm:8", cooling="air").fits
    hot = tl.facility("gb300:72", cooling="air")
    assert not hot.fits
    assert hot.cooling.needed == "liquid"
    assert tl.facility("gb300:72").cooling.cooling == "liquid"
    assert tl.facility("gb300:72").fits
    warm = tl.facility("h100-sxm:8", inlet=36)
    assert not warm.fits
    assert "made for 5 to 30 C" in warm.cooling.reason


def test_a_year_adds_up() -> None:
    found = facility(watts="540W", region="france", usd_per_kwh=0.1, pue=1.2, litres_per_kwh=1.0, utilisation=0.5)
    year, power = found["year"], found["power"]
    assert power["it_kw"] == pytest.approx(power["cards_kw"] + power["beside_kw"], rel=1e-4)
    assert power["cards_kw"] == pytest.approx(64 * 0.54)
    assert year["facility_kwh"] == pytest.approx(1.2 * year["it_kwh"], rel=1e-4)
    assert year["electricity_usd"] == pytest.approx(0.1 * year["facility_kwh"], rel=1e-4)
    assert year["co2_tonnes"] == pytest.approx(56 * year["facility_kwh"] / 1e6, rel=1e-4)
    assert year["water_m3"] == pytest.approx(year["it_kwh"] / 1000, rel=1e-4)
    assert power["it_kw"] * 4380 < year["it_kwh"] < power["it_kw"] * 8760
    dirtier = facility(watts="540W", region="india")["year"]["co2_tonnes"]
    assert dirtier / facility(watts="540W", region="france")["year"]["co2_tonnes"] == pytest.approx(713 / 56, rel=1e-3)


def test_a_plan_brings_its_watts_and_tokens(tmp_path: Path) -> None:
    answer = tl.fit("llama-3.1-8b", "h100-sxm", isl=1024, osl=256, concurrency=32)
    path = tmp_path / "plan.json"
    path.write_text(answer.to_json(), encoding="utf-8")
    for what in (answer, str(path)):
        found = facility(what)
        assert found["power"]["cards_kw"] == pytest.approx(answer.to_dict()["power"]["watts"] / 1e3, rel=1e-4)
        tokens = answer.to_dict()["speed"]["output_tokens_per_s"]["value"] * 8760 * 3600 / 1e6
        assert found["year"]["kwh_per_million_tokens"] == pytest.approx(
            found["year"]["facility_kwh"] / tokens, rel=1e-3
        )


def test_heat_costs_tokens() -> None:
    heat = facility(clocks=0.9, rent=2.5)["heat"]
    assert (heat["tokens_kept_low"], heat["tokens_kept_high"]) == (0.9, 0.99)
    assert heat["usd_per_year_high"] == pytest.approx(0.1 * 64 * 2.5 * 8760)
    by_curve = facility(inlet=31, derate="27=1,35=0.92")["heat"]
    assert by_curve["clock_share"] == pytest.approx(0.96)
    with pytest.raises(InputError, match="`derate` needs `inlet`"):
        facility(derate="27=1")


def test_rent_or_buy_meets_where_it_says() -> None:
    purchase = Purchase(usd_per_gpu=35_000, years=4, interest=0.08, upkeep=0.06, resale=0.15)
    bought = rent_or_buy(purchase, gpus=8, rent_usd_per_hour=2.5, electricity_usd_per_year=10_000, utilisation=1.0)
    assert sum(bought.parts_usd.values()) == pytest.approx(bought.own_usd)
    at = bought.break_even_utilisation
    assert at is not None
    even = rent_or_buy(purchase, gpus=8, rent_usd_per_hour=2.5, electricity_usd_per_year=10_000, utilisation=at)
    assert even.own_usd == pytest.approx(even.rent_usd)
    assert even.own_usd_per_gpu_hour == pytest.approx(2.5)
    plain = Purchase(usd_per_gpu=24_000, years=4, interest=0, upkeep=0, resale=0)
    months = rent_or_buy(
        plain, gpus=1, rent_usd_per_hour=1.0, electricity_usd_per_year=0, utilisation=1
    ).break_even_months
    assert months == pytest.approx(24_000 / 730)
    rare = rent_or_buy(plain, gpus=1, rent_usd_per_hour=1.0, electricity_usd_per_year=0, utilisation=0.1)
    assert (rare.cheaper, rare.break_even_months) == ("rent", None)


def test_dollars_of_a_million_tokens() -> None:
    assert usd_per_million_tokens(8.0, 50.0) == pytest.approx(44.4, abs=0.05)


def test_a_node_of_fewer_cards_than_it_could_hold() -> None:
    found = tl.facility("rtx-4090:4", watts="300W")
    assert (found.power.nodes, found.power.node_gpus) == (1, 4)
    # 4 x 450 W and what stands beside them, taken as half: data/facilities, other_nodes
    assert found.power.node_kw_at_most == pytest.approx(4 * 0.45 * 1.5)
    assert "a node of 4 GPUs takes 2.7 kW at most" in str(found)
    assert tl.facility("h100-sxm:4").power.node_gpus == 8  # sold as eight
    assert "counted for 4 GPUs; ask about 8 where others use the rest" in " ".join(
        str(tl.facility("h100-sxm:4")).split()
    )


def test_more_than_a_board_may_draw_is_said() -> None:
    found = tl.facility("rtx-4090:4", watts="900W")
    assert "900 W a GPU is more than the 450 W that GeForce RTX 4090 may draw as sold" in " ".join(str(found).split())
    assert found.power.node_kw_at_most == pytest.approx(4 * (0.9 + 0.45 * 0.5))


def test_dollars_say_of_how_many_years() -> None:
    assert "over 5 years $" in str(tl.facility("h100-sxm:8", capex=30000, rent=2.5, years=5))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    ask = ["facility", "h100-sxm:64", "--watts", "540W", "--rack-kw", "40kW", "--region", "france", "--capex", "35000"]
    assert main([*ask, "--clocks", "0.9", "--better-pue", "1.2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "trilemma/facility@1"
    jsonschema.validate(document, schema_of("facility"))
    assert main([*ask, "--explain"]) == 0
    told = capsys.readouterr().out
    for words in ("3 racks of 40 kW", "a year", "break" if "break" in told else "buying", "sources"):
        assert words in told
    assert main(["facility", "gb300:72", "--cooling", "air"]) == 1
    assert "not enough, take liquid" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["h100-sxm:64", "--rack-kw", "40kWh"], "is energy"),
        (["h100-sxm:64", "--watts", "10kW/node"], "is per node"),
        (["h100-sxm:64", "--region", "atlantis"], "give one of world"),
        (["h100-sxm:64", "--pue", "0.9"], "from 1 to 5"),
        (["h100-sxm:64", "--utilisation", "2"], "out of range"),
        (["h100-sxm:64", "--plan", "9" * 5000], "is not a whole number"),
        (["h100-sxm:64", "--cooling", "9" * 5000], "choose from"),
        (["h100-sxm:64", "--tokens-per-s", "1e-320"], "out of range"),
        (["b200x:64"], "b200"),
        (["none.json"], "none.json"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["facility", *words]) == 2
    told = capsys.readouterr().err
    assert why in told
    assert told.count("\n") == 1
    assert len(told) < 500


@pytest.mark.parametrize("interest", [1e-3, 1e-9, 1e-15, 1e-17, 5e-324])
def test_little_interest_costs_little_more_than_none(interest: float) -> None:
    years = {
        one: Purchase(usd_per_gpu=30_000, years=4, interest=one, upkeep=0, resale=0.1).usd_per_year
        for one in (0, interest)
    }
    assert years[interest] == pytest.approx(years[0], rel=3 * interest + 1e-12)


@pytest.mark.parametrize("hostile", ["null", "[]", '"x"', "NaN", "-Infinity", "-1", "1e308", "9" * 400, "true"])
@pytest.mark.parametrize("name", ["watts", "watts_low", "value", "low", "high"])
def test_figures_of_a_document_that_are_none_are_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, hostile: str
) -> None:
    told: dict[str, Any] = {
        "schema": "trilemma/estimate@1",
        "inputs": {"cluster": {"accelerator": {"id": "h100-sxm"}, "gpus": 8}}, "power": {"watts": 4000, "watts_low": 3000},
        "speed": {"output_tokens_per_s": {"value": 900, "low": 800, "high": 1000}},
    }  # fmt: skip
    for part in (told["power"], told["speed"]["output_tokens_per_s"]):
        part |= {name: "@@"} if name in part else {}
    (tmp_path / "plan.json").write_text(json.dumps(told).replace('"@@"', hostile))
    assert main(["facility", str(tmp_path / "plan.json"), "--json"]) in (
        (2,) if hostile in ("NaN", "-Infinity") else (0, 1)
    )
    out = capsys.readouterr().out
    assert "NaN" not in out
    assert "Infinity" not in out
