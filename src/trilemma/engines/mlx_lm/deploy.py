"""A plan as an MLX-LM server, and as one generation of the same."""

from __future__ import annotations

from trilemma.engines.deployment.fleet import Fleet, FleetAsked, alone, checked_pools
from trilemma.engines.deployment.one_server import fleet_of
from trilemma.engines.mlx_lm.write import generator, write


def fleet(asked: FleetAsked) -> Fleet:
    """The server of ``asked.plan``. Raises `InputError` also for pools apart."""
    own = alone(asked.plan, checked_pools(asked.plan)[0])
    return fleet_of(
        "mlx-lm", write(model=asked.model, plan=own), asked=asked,
        beside=generator(model=asked.model, plan=own),
    )  # fmt: skip
