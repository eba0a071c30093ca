"""Images of a load: what their tower takes before a prompt, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trilemma.engines.preprocessing import stated
from trilemma.errors import PlanWarning
from trilemma.models.image_tokens import image_tokens
from trilemma.quantities import counted, show_count
from trilemma.question import ServingQuestion
from trilemma.timing import Machine
from trilemma.timing.vision_tower import tower_pass

#: No run told of a tower's time: from half of what is reckoned to three times as much, by what that differs.
TOWER_RANGE = (-0.5, 2.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenImages:
    """Seconds of the tower for the images of one prompt, and what the reader is told."""

    seconds: float = 0.0
    warnings: tuple[PlanWarning, ...] = ()


def images_of(question: ServingQuestion, machine: Machine) -> SeenImages:
    """What the images of ``question``'s load take; nothing where it states none."""
    load, model, plan = question.workload, question.model, question.plan
    if load.images is None or load.image_size is None or load.image_tokens is None:
        return SeenImages()
    one = image_tokens(model, *load.image_size, changed=stated(plan.pool.options.extra))
    count, tp = load.images, plan.pool.layout.tp
    taken = tower_pass(model, machine, patches=count * one.patches, span=one.span, tokens=count * one.tokens, tp=tp)
    seconds = float(np.asarray(taken.total_s))
    low_ms, high_ms = ((1 + part) * seconds * 1e3 for part in TOWER_RANGE)
    message = (
        f"{counted(load.images, 'image')} of {load.image_size[0]} x {load.image_size[1]} with each prompt:"
        f" {counted(one.tokens, 'token')} each ({show_count(one.patches)} patches), beside"
        f" {show_count((load.isl or 0) - load.image_tokens)} of text; their tower takes {seconds * 1e3:.3g} ms, by its FLOPs as"
        f" prompts run here ({low_ms:.3g} to {high_ms:.3g}: no run told it); decoding and resizing on the host are not counted"
    )
    return SeenImages(seconds=seconds, warnings=(PlanWarning(code="images", message=message),))
