"""Requests that are sent all at once, and none after them: a load that is never steady; each waits for half of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trilemma.timing.machine import Machine
from trilemma.timing.serving_step import ServingSpeed


def where_at_once(machine: Machine, bursts: Any) -> Machine:
    """``machine`` where ``bursts`` (truth, or an array of it) were sent at once: of the prompts that run together half are ahead
    of one in the mean, a share and no fitted number."""
    share = np.where(bursts, 0.5, machine.coefficients.queue_share)
    return machine.with_coefficients(machine.coefficients.with_numbers(queue_share=share))


def of_burst(speed: ServingSpeed, bursts: Any) -> ServingSpeed:
    """``speed`` with the first tokens of ``bursts``: slots are given from the first request to the last, so that the mean one
    waits for half of those that do not fit, where in a steady load each waits for all others. Seconds."""
    slot_s = np.where(bursts, 0.5, 1.0) * np.asarray(speed.first_lines["slot"])
    lines = {**speed.first_lines, "slot": slot_s}
    return replace(speed, ttft_s=np.asarray(speed.ttft_s) - speed.first_lines["slot"] + slot_s, first_lines=lines)
