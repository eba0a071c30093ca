"""A plan as LM Studio's server with one model loaded."""

from __future__ import annotations

import shlex

from trilemma.engines.deployment.fleet import Fleet, alone, checked_pools
from trilemma.engines.deployment.one_server import fleet_of
from trilemma.engines.lm_studio.write import around, write
from trilemma.plans import Plan


def fleet(
    *,
    model: str,
    plan: Plan,
    version: str | None,
    maker: str,
    per_node: int | None,
    latent: bool | None = None,  # noqa: ARG001 - one signature for all engines
) -> Fleet:
    """The server of ``plan``; arguments as `trilemma.engines.vllm.deploy.fleet`. Raises `InputError` also for pools apart."""
    command = write(model=model, plan=alone(plan, checked_pools(plan)[0]))
    before, _ = around(model, command)
    return fleet_of(
        "lm-studio", [*command, "--yes"], model=model, plan=plan, version=version, maker=maker, per_node=per_node,
        before=("lms server start", *map(shlex.join, before)),
    )  # fmt: skip
