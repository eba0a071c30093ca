"""The lines of a token's time in full: seconds, how near each is to the datasheet, what binds it, where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from trilemma.estimate.estimate import OperatorTime, Resource
from trilemma.timing import Machine, PassTime, ServingSpeed
from trilemma.timing.host_weights import HOST_LINES

#: A line of a token's time that is a pass of its own, and the draft passes, whose work is not counted.
PREFILL, DRAFT = "prefill", "draft"


def operators(speed: ServingSpeed, roof: ServingSpeed, machine: Machine) -> tuple[OperatorTime, ...]:
    """The lines of ``speed`` that take any time; they sum to its ``tpot_s``.

    ``roof`` is the same load on `Machine.at_datasheet`: one formula gives both the seconds and what they could be.
    """
    return tuple(_operators(speed, roof, machine))


def _operators(speed: ServingSpeed, roof: ServingSpeed, machine: Machine) -> Iterator[OperatorTime]:
    source = source_of(machine)
    for name, seconds in speed.lines.items():
        taken = _float(seconds)
        if taken <= 0:
            continue
        at_best = _float(roof.lines.get(name, 0.0))
        line = OperatorTime(
            name=name,
            seconds=taken,
            share=taken / _float(speed.tpot_s),
            bound_by=_bound_by(speed, name),
            source=_source_of_host(machine) if name in HOST_LINES else source,
            roof_s=at_best if at_best > 0 else None,
        )
        yield replace(line, **_work(speed, name))


def source_of(machine: Machine) -> str:
    """Where the seconds come from, in a few words: a profile, runs of this deployment or of others, the datasheet."""
    deployment = f"{machine.engine} {machine.accelerator.id} {machine.precision}"
    profile = None if machine.terms is None else machine.terms.profile
    if profile is not None and profile[1] == deployment:
        return f"profile {profile[0]}"
    if machine.terms is not None and machine.terms.anchors is not None and machine.terms.anchors.key == deployment:
        return "measured points given"
    if not machine.engine or not machine.coefficients.known_card:
        return "spec sheet"
    return f"{'fitted' if machine.measured else 'carried over'}: {deployment}"


def _source_of_host(machine: Machine) -> str:
    host = machine.cluster.around
    return f"shares of {'an assumed' if host.assumed else 'the'} host, {host.name}"


def _bound_by(speed: ServingSpeed, name: str) -> Resource:
    if name == PREFILL:
        resources = speed.prefill.resources
        return cast(Resource, max(resources, key=lambda one: _float(resources[one])))
    return "memory_bandwidth" if name == DRAFT else cast(Resource, speed.step.binding(name))


def _work(speed: ServingSpeed, name: str) -> dict[str, Any]:
    """FLOPs and bytes of a line for one token, and the format in which most of them are computed."""
    if name == PREFILL:
        return _summed(speed.prefill, None, _float(speed.prefills_per_token))
    return _summed(speed.step, name, speed.steps_per_token)


def _summed(of: PassTime, line: str | None, times: float) -> dict[str, Any]:
    flops: dict[str, float] = {}
    n_bytes = 0.0
    for one in of.works:
        if line in (None, one.line):
            repeats = _float(one.repeats) * times
            flops[one.computed_in] = flops.get(one.computed_in, 0.0) + _float(one.work.flops) * repeats
            n_bytes += _float(one.work.bytes) * repeats
    if not flops:
        return {}
    return {"flops": sum(flops.values()), "bytes": n_bytes, "computed_in": max(flops, key=lambda name: flops[name])}


def _float(number: Any) -> float:
    return float(np.asarray(number))
