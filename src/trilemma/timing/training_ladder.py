"""Cards whose generation no training run told: a share of the peak from matrix products measured on them, never the whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from statistics import geometric_mean

from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.catalogue import all_accelerators, find

#: Generation of card by start of the architecture's name; any other is a generation of its own name.
_GENERATIONS = (
    ("Ampere sm_80", "ampere"), ("Hopper", "hopper"), ("Blackwell sm_10", "blackwell"),
    ("Blackwell Ultra", "blackwell_ultra"), ("CDNA3", "cdna3"), ("CDNA4", "cdna4"),
)  # fmt: skip
#: Coefficients of attention that belong to no generation.
_SHARED = ("attention.narrow",)


def generation_of(accelerator: Accelerator) -> str:
    """The generation of a card as coefficients name it, such as ``hopper`` or ``ada_sm_89``."""
    for start, name in _GENERATIONS:
        if accelerator.architecture.startswith(start):
            return name
    return accelerator.architecture.lower().replace(" ", "_").replace(".", "_")


def rung(name: str, accelerator: Accelerator, known: Mapping[str, float]) -> float:
    """What stands for a coefficient that was not fitted: a number.

    A format's offset of a generation that no run told is what matrix products measured on the card reach of its peak over what
    they reach on cards that runs told (the catalogue's ``matmul_fraction_…``, with their sources). Attention walks: the same
    generation with another kernel, another generation of the vendor, the mean of all, each by the same ratio. Anything else is an
    offset from what is shared: 1.

    A factor or rate, as the coefficient it stands for.
    """
    kind, _, rest = name.partition(".")
    generation, _, what = rest.partition(".")
    if kind == "generation":
        told = any(one.startswith(f"generation.{generation}.") for one in known)
        return 1.0 if told else reach(accelerator, what) / _usual_reach(what, frozenset(_told(known)))
    if kind == "attention" and name not in _SHARED:
        same = {one: value for one, value in known.items() if one.startswith(f"attention.{generation}.")}
        if same:
            return geometric_mean(same.values())
        alike = {
            one: value for one, value in known.items() if one.endswith(f".{what}") and one.startswith("attention.")
        }
        alike = alike or {
            one: value for one, value in known.items() if one.startswith("attention.") and one not in _SHARED
        }
        if not alike:
            return 1.0
        donors = _of_vendor(alike, accelerator.vendor) or alike
        usual = reach(accelerator, "bf16") / _usual_reach("bf16", frozenset(_told(known)))
        return min(geometric_mean(donors.values()) * min(usual, 1.0), 1.0)
    return 1.0


def _told(known: Mapping[str, float]) -> Iterable[str]:
    """Cards that runs told."""
    return (name.removeprefix("gpu.") for name in known if name.startswith("gpu."))


def reach(accelerator: Accelerator, what: str) -> float:
    """Measured share of the peak of matrix products: of this card in this format, of one of its generation, of BF16; where none
    is measured that of the vendor's least, so that no card is taken for better than its kin.

    A share, a scalar. Source: ``matmul_fraction_…`` of data/accelerators.
    """
    for name in (f"matmul_fraction_{what.split('_')[0]}", "matmul_fraction_bf16"):
        if name in accelerator.facts:
            return min(accelerator.facts[name].value, 1.0)
        kin = _measured(name, generation_of(accelerator))
        if kin:
            return kin
    return _measured("matmul_fraction_bf16", f"vendor {accelerator.vendor}") or _usual_reach("bf16", frozenset())


@cache
def _measured(name: str, group: str) -> float:
    """Mean measured share of cards of a generation, the least of those of a vendor; 0 where none was measured."""
    values = [
        min(card.facts[name].value, 1.0)
        for card in all_accelerators()
        if name in card.facts and group in (generation_of(card), f"vendor {card.vendor}")
    ]
    if not values:
        return 0.0
    return min(values) if group.startswith("vendor ") else geometric_mean(values)


@cache
def _usual_reach(what: str, cards: frozenset[str]) -> float:
    """Mean measured share on cards that runs told, in this format, else in BF16; of all cards where none is named."""
    for name in (f"matmul_fraction_{what.split('_')[0]}", "matmul_fraction_bf16"):
        chosen = [find(card) for card in sorted(cards)] if cards else list(all_accelerators())
        values = [min(card.facts[name].value, 1.0) for card in chosen if name in card.facts]
        if values:
            return geometric_mean(values)
    return 1.0


def _of_vendor(values: Mapping[str, float], vendor: str) -> dict[str, float]:
    names = {generation_of(card) for card in all_accelerators() if card.vendor == vendor}
    return {name: value for name, value in values.items() if name.split(".")[1] in names}
