"""A pilot on this machine beside what is predicted for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trilemma.ask.questions import fit
from trilemma.hardware.reader import parse_accelerator
from trilemma.measuring.card_file import card_text, known_card
from trilemma.measuring.gaps import Gap, Piloted, decode_gaps, training_gaps
from trilemma.measuring.pilot import PilotAsked, decode, train
from trilemma.measuring.suite import Progress, measure_device
from trilemma.models.read import model_from_config

if TYPE_CHECKING:
    from trilemma.measuring.device import Device

#: Recipes of training by format of weights, and names of formats in configurations.
_RECIPES = {"bf16": "pure-bf16", "fp32": "fp32"}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def pilot(
    asked: PilotAsked, device: Device, *, name: str = "", gpu: Any = None, training: bool = True, generating: bool = True,
    progress: Progress | None = None,
) -> Piloted:  # fmt: skip
    """Run the pilot and predict it: for ``gpu``, else for the catalogue's card that this is, else for a card of rates that are
    measured first."""
    card, known = gpu, known_card(device)
    told = str(gpu or "")
    if card is None and known is not None:
        card, told = known, known.id
    if card is None:
        text = card_text(measure_device(device, progress=progress))
        card, told = parse_accelerator(text, name="this-machine", where="what was measured"), "as measured just before"
    model = model_from_config(_stored(asked), name=name or "the pilot", source="the pilot's configuration")
    gaps: list[Gap] = []
    if training:
        predicted = fit(
            model, card, seq=asked.seq, global_batch=asked.micro_batch, micro_batch=asked.micro_batch, zero=0,
            engine="transformers", precision=_RECIPES[asked.fmt], recompute="full" if asked.recompute else "none",
        )  # fmt: skip
        gaps += training_gaps(predicted, train(device, asked), tokens=asked.seq * asked.micro_batch)
    if generating:
        predicted = fit(
            model, card, engine="transformers", isl=asked.isl, osl=asked.osl, concurrency=asked.decode_batch,
            context=asked.isl + asked.osl,
        )  # fmt: skip
        gaps += decode_gaps(predicted, decode(device, asked), batch=asked.decode_batch)
    return Piloted(
        asked=asked, device=device.name, model=model.name, parameters=float(sum(one.elements for one in model.tensors)),
        card=told, gaps=tuple(gaps),
    )  # fmt: skip


def _stored(asked: PilotAsked) -> Mapping[str, Any]:
    kept = {key: value for key, value in asked.config.items() if key not in ("quantization_config", "dtype")}
    return kept | {"torch_dtype": _DTYPES[asked.fmt]}
