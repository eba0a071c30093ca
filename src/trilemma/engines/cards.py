"""Which engines run on a card, as far as their rules are known here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trilemma import engines
from trilemma.errors import InputError
from trilemma.versions import padded, parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trilemma.engines.traits import EngineTraits
    from trilemma.hardware.accelerator import Accelerator


def vendors_of(name: str, version: str | None = None) -> tuple[str, ...]:
    """The makers of the cards on which rules of the engine are known; none where they are not stated."""
    stated = engines.traits_of(name).vendors
    if stated is not None:
        return stated
    told, _ = engines.get(name).facts(version).get("vendors", ((), ""))
    return tuple(told)


def that_run_on(accelerator: Accelerator) -> tuple[str, ...]:
    """The engines with rules for cards of this maker and age, in the order in which they are named."""
    return tuple(
        name
        for name in engines.readable()
        if accelerator.vendor in vendors_of(name)
        and (accelerator.compute_capability or 99.0) >= engines.traits_of(name).capability_from
    )


def too_old(traits: EngineTraits, accelerator: Accelerator) -> InputError:
    """That the engine has no kernels for cards of this age, and which engines have."""
    others = that_run_on(accelerator)
    return InputError(
        f"{traits.label} runs on NVIDIA cards from compute capability {traits.capability_from:g} on, and {accelerator.name} has"
        f" {accelerator.compute_capability:g}" + (f"; use `engine` {' or '.join(others)}" if others else "")
    )


def too_new(name: str, version: str, accelerator: Accelerator) -> str:
    """That the release as its makers distribute it is older than cards of this kind; "" where it is not."""
    traits, capability = engines.traits_of(name), accelerator.compute_capability or 0.0
    for row in traits.built_through:
        if capability > row["capability_through"] and _before(version, row["before"], name):
            return (
                f"{traits.label} {version} as it is distributed has kernels up to compute capability"
                f" {row['capability_through']:g}, and {accelerator.name} has {capability:g}: unless it was built for this card it"
                f" stops with 'no kernel image is available'; {row['before']} is the first that runs there"
            )
    return ""


def _before(version: str, first: str, name: str) -> bool:
    return padded(parse_version(version, engine=name)) < padded(parse_version(first, engine=name))


def unknown_there(label: str, accelerator: Accelerator, vendors: Sequence[str]) -> InputError:
    """That no rules of the engine are known on the card, and which engines have some. It may well have a port there."""
    others = that_run_on(accelerator)
    use = f"use `engine` {' or '.join(others)}" if others else "no engine known here has any"
    return InputError(
        f"no rules of {label} on {accelerator.name} are known here, only on cards of {', '.join(vendors)}; {use}"
    )
