"""A plan as an MLX-LM server, and as one generation of the same."""

from __future__ import annotations

from trilemma.engines.deployment.fleet import Fleet, alone, checked_pools
from trilemma.engines.deployment.one_server import fleet_of
from trilemma.engines.mlx_lm.write import generator, write
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
    own = alone(plan, checked_pools(plan)[0])
    return fleet_of(
        "mlx-lm", write(model=model, plan=own), model=model, plan=plan, version=version, maker=maker, per_node=per_node,
        beside=generator(model=model, plan=own),
    )  # fmt: skip
