"""Images of a load: what they are of each prompt, by the model that reads them."""

from __future__ import annotations

from dataclasses import replace

from trilemma.engines.preprocessing import stated
from trilemma.errors import InputError
from trilemma.models.architecture import Model
from trilemma.plans import Plan
from trilemma.workloads import Serving

#: Pixels of an image where none are stated.
_ASSUMED_SIDE = 1024


def with_images(load: Serving, model: Model, plan: Plan | None, *, text_only: bool = False) -> Serving:
    """``load`` whose prompts hold the tokens of their images too; as it is where it states none. ``text_only``: the checkpoint is
    of the language model alone.

    Raises `InputError` for models that read none, for a plan that loads no tower or takes fewer images, and for sizes without
    images.
    """
    if load.images is None or load.image_tokens is not None:
        if load.image_size is not None and load.images is None:
            raise InputError("`image_size` is of images; give `images`, how many come with each prompt")
        return load
    from trilemma.estimate.serving_load import ASSUMED_ISL
    from trilemma.models.image_tokens import image_tokens

    size = load.image_size or (_ASSUMED_SIDE, _ASSUMED_SIDE)
    options = None if plan is None else plan.pools[0].options
    if text_only or (options is not None and options.text_only):
        raise InputError(
            f"`images` {load.images}: the plan loads no vision tower (text alone); leave its switch or `images` out"
        )
    most = None if options is None or options.multimodal_limits is None else options.multimodal_limits.get("image")
    if most is not None and load.images > most:
        raise InputError(
            f"`images` {load.images}: the command takes {most} a prompt (--limit-mm-per-prompt); give fewer, or raise it"
        )
    one = image_tokens(model, *size, changed=None if options is None else stated(options.extra))
    tokens = load.images * one.tokens
    return replace(load, isl=(load.isl or ASSUMED_ISL) + tokens, image_size=size, image_tokens=tokens)
