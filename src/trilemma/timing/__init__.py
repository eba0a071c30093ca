"""Seconds: rooflines of operators, collectives, and what a serving step adds up to."""

from trilemma.timing.coefficients import Coefficients, coefficients_for
from trilemma.timing.explain import speed_explanation
from trilemma.timing.forward_pass import decode_step, prefill_pass
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork, model_work
from trilemma.timing.pass_time import PassTime
from trilemma.timing.roofline import operator_time_s, peak_flops, ridge_flops_per_byte
from trilemma.timing.serving_step import ServingSpeed, concurrency_for_rate, serving_speed

__all__ = [
    "Coefficients",
    "Machine",
    "ModelWork",
    "PassTime",
    "ServingSpeed",
    "coefficients_for",
    "concurrency_for_rate",
    "decode_step",
    "model_work",
    "operator_time_s",
    "peak_flops",
    "prefill_pass",
    "ridge_flops_per_byte",
    "serving_speed",
    "speed_explanation",
]
