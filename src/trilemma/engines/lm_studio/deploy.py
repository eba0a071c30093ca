"""A plan as LM Studio's server with one model loaded."""

from __future__ import annotations

import shlex

from trilemma.engines.deployment.fleet import Fleet, FleetAsked, alone, checked_pools
from trilemma.engines.deployment.one_server import fleet_of
from trilemma.engines.lm_studio.write import around, write


def fleet(asked: FleetAsked) -> Fleet:
    """The server of ``asked.plan``. Raises `InputError` also for pools apart."""
    command = write(model=asked.model, plan=alone(asked.plan, checked_pools(asked.plan)[0]))
    before, _ = around(asked.model, command)
    return fleet_of(
        "lm-studio", [*command, "--yes"], asked=asked,
        before=("lms server start", *map(shlex.join, before)),
    )  # fmt: skip
