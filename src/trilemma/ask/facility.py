"""What a plan, or so many cards, ask of a building and cost there, as an answer that shows itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trilemma.ask.answers import Shown
from trilemma.ask.facility_options import FACILITY, FACILITY_OPTIONS
from trilemma.ask.options import settled
from trilemma.ask.plan_documents import chosen, object_in, read_document
from trilemma.ask.reading import number, possible
from trilemma.errors import InputError, shorten
from trilemma.facilities.answer import Facility
from trilemma.facilities.facts import facility_data
from trilemma.facilities.owning import Purchase
from trilemma.facilities.site import FacilityQuestion, facility_of
from trilemma.facilities.units import read_power
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.catalogue import find
from trilemma.hardware.gpu_argument import parse_gpu_argument
from trilemma.intervals import Interval
from trilemma.timing.power import power_terms


class FacilityAnswer(Shown, Facility):
    """A building for so many cards."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether the cooling carries the racks."""
        return self.cooling.enough

    def screen(self, *, explain: bool, width: int) -> str:
        from trilemma.report.facility import render_facility

        return render_facility(self, width=width, explain=explain)


def facility(what: Any, **options: Any) -> FacilityAnswer:
    """``facility("h100-sxm:64", watts="540W", rack_kw="40kW", region="france")``: nodes, racks, cooling, a year of energy,
    carbon, water and dollars, what heat costs, and renting against buying. ``what`` is cards, the answer of `fit`, `plan` or
    `train`, their document, or a file of it."""
    asked = settled(FACILITY, options, FACILITY_OPTIONS)
    card, gpus, told = _cards_of(what, asked.plan)
    limit = card.tdp_w
    if limit is None:
        raise InputError(f"the limit of {card.name} is not known; its power cannot be told")
    limit_kw = limit.value / 1e3
    idle_kw = limit_kw * power_terms(card).shares["idle"]
    return FacilityAnswer.of(
        facility_of(
            FacilityQuestion(
                card=card,
                gpus=gpus,
                card_kw=_card_kw(asked, told, gpus, limit_kw, idle_kw),
                limit_kw=limit_kw,
                idle_kw=idle_kw,
                cooling=asked.cooling or "",
                climate=asked.climate,
                region=asked.region,
                utilisation=asked.utilisation,
                hours=asked.hours,
                pue=asked.pue,
                better_pue=asked.better_pue,
                usd_per_kwh=asked.usd_per_kwh,
                grams_per_kwh=asked.grams_per_kwh,
                litres_per_kwh=asked.litres_per_kwh,
                rack=None if asked.rack_kw is None else read_power(asked.rack_kw, name="rack_kw", of="rack"),
                inlet_c=asked.inlet,
                clock_share=_clocks(asked),
                tokens_per_s=_tokens(asked, told, gpus),
                rent_usd_per_gpu_hour=_rent(asked, card),
                purchase=_purchase(asked),
                stated={"gpu": card.id, "gpus": gpus, **{k: v for k, v in vars(asked).items() if v is not None}},
            )
        )
    )


def _cards_of(what: Any, number_of_plan: int) -> tuple[Accelerator, int, Mapping[str, Any]]:
    """The card, how many, and the document of a plan where there is one."""
    if hasattr(what, "to_dict"):
        document, path = what.to_dict(), "the answer given"
    elif isinstance(what, Mapping):
        document, path = what, "the document given"
    elif Path(str(what)).suffix == ".json":
        document, path = read_document(str(what)), str(what)
    else:
        card, gpus = parse_gpu_argument(str(what))
        return card, gpus, {}
    plan = chosen(document, number_of_plan, path) if "schema" in document else document
    cluster = object_in(object_in(plan.get("inputs"), "inputs", path).get("cluster"), "cluster", path)
    name = object_in(cluster.get("accelerator"), "inputs.cluster.accelerator", path).get("id")
    if not isinstance(name, str) or not isinstance(cluster.get("gpus"), int) or cluster["gpus"] < 1:
        raise InputError(
            f"{shorten(path)}: inputs.cluster names no accelerator; give what fit or plan printed with --json"
        )
    return find(name), cluster["gpus"], plan


def _spread_of(told: Any, value: str, low: str, high: str) -> Interval | None:
    """The figure ``value`` of a document with the ends ``low`` and ``high``, where it tells them."""
    figures = [possible(told.get(name)) for name in (value, low, high)] if isinstance(told, Mapping) else [None]
    middle, *ends = figures
    if middle is None:
        return None
    known = [middle, *(one for one in ends if one is not None)]
    return Interval(value=middle, low=min(known), high=max(known))


def _card_kw(asked: SimpleNamespace, told: Mapping[str, Any], gpus: int, limit_kw: float, idle_kw: float) -> Interval:
    if asked.watts is not None:
        stated = asked.watts
        power = read_power(
            stated / 1e3 if isinstance(stated, int | float) else _with_unit(stated), name="watts", of="gpu"
        )
        return Interval.exact(power.kw)
    drawn = _spread_of(told.get("power"), "watts", "watts_low", "watts_high")
    if drawn is not None:
        return drawn.scaled(1 / gpus / 1e3)
    return Interval(value=limit_kw, low=idle_kw, high=limit_kw)


def _with_unit(stated: str) -> str:
    """A bare number of watts with its unit; words as they are."""
    return f"{stated}W" if str(stated).strip().replace(".", "", 1).isdigit() else str(stated)


def _tokens(asked: SimpleNamespace, told: Mapping[str, Any], gpus: int) -> Interval | None:
    if asked.tokens_per_s is not None:
        if asked.tokens_per_s <= 0:
            raise InputError(f"`tokens_per_s` {asked.tokens_per_s:g} is out of range; give a number above 0")
        return Interval.exact(asked.tokens_per_s)
    speed = told.get("speed")
    if not isinstance(speed, Mapping):
        return None
    for name, times in (("output_tokens_per_s", 1), ("tokens_per_s_per_gpu", gpus)):
        rate = _spread_of(speed.get(name), "value", "low", "high")
        if rate is not None:
            return rate.scaled(times)
    return None


def _clocks(asked: SimpleNamespace) -> float | None:
    """The share of clocks that is kept: stated, or read off the curve of one's own at the inlet temperature."""
    if asked.derate is None:
        return None if asked.clocks is None else float(asked.clocks)
    if asked.clocks is not None or asked.inlet is None:
        raise InputError("`derate` needs `inlet`, and takes the place of `clocks`")
    points = []
    for part in str(asked.derate).split(","):
        degrees, sign, share = part.partition("=")
        if not sign:
            raise InputError(f"`derate` {shorten(part)!r} is not C=SHARE, such as 35=0.93")
        points.append((number(degrees), number(share)))
    points.sort()
    import numpy as np

    return float(np.interp(asked.inlet, [at for at, _ in points], [share for _, share in points]))


def _rent(asked: SimpleNamespace, card: Accelerator) -> float | None:
    if asked.rent is not None:
        return float(asked.rent)
    return None if card.usd_per_hour is None else card.usd_per_hour.value


def _purchase(asked: SimpleNamespace) -> Purchase | None:
    if asked.capex is None:
        return None
    usual = facility_data()["owning"]
    terms = {
        name: usual[name] if getattr(asked, name) is None else getattr(asked, name)
        for name in ("years", "interest", "upkeep", "resale")
    }
    return Purchase(usd_per_gpu=asked.capex, **terms)
