"""How Megatron-LM's flags lay layers on pipeline stages."""

from __future__ import annotations

import re

from trilemma.commands.option_words import Options
from trilemma.errors import InputError, shorten
from trilemma.models.architecture import Model
from trilemma.plans.pipeline import piece_sizes

_PIECE = re.compile(r"\(([A-Za-z|]+)\)\*(\d{1,4})|([A-Za-z])\*(\d{1,4})|([A-Za-z|])")


def chunks(options: Options, pp: int, model: Model | None) -> int:
    """Model chunks of each stage: stated, from the layers of a chunk, or from the layout's text."""
    stated = options.whole("num-virtual-stages-per-pipeline-rank")
    per_chunk = options.whole("num-layers-per-virtual-pipeline-stage")
    text = options.text("pipeline-model-parallel-layout")
    if text is not None:
        return max(len(_stages(text)) // pp, 1)
    if stated is not None:
        return stated
    if per_chunk is None or model is None:
        return 1
    layers = len(model.layers)
    if layers % (pp * per_chunk):
        raise InputError(
            f"--num-layers-per-virtual-pipeline-stage {per_chunk} x {pp} stages does not divide the {layers} layers;"
            " use a divisor, or --num-virtual-stages-per-pipeline-rank"
        )
    return layers // pp // per_chunk


def _stages(text: str) -> list[str]:
    """``Et*3|(tt|)*29,m|L`` → one word a chunk: E embedding, t layer, m prediction layer, L loss."""
    spelled: list[str] = []
    at = 0
    body = text.replace(",", "").replace(" ", "")
    while at < len(body):
        match = _PIECE.match(body, at)
        if match is None or sum(map(len, spelled)) > 2**14:
            raise InputError(
                f"--pipeline-model-parallel-layout {shorten(text)!r} is not a layout such as Et*3|(tt|)*9|L"
            )
        piece = match.group(1) or match.group(3) or match.group(5)
        spelled.append(piece * int(match.group(2) or match.group(4) or 1))
        at = match.end()
    return "".join(spelled).rstrip("|").split("|")


def stage_layers(options: Options, pp: int, vpp: int, model: Model | None) -> tuple[int, ...] | None:
    """Layers of each stage where flags state them unevenly; None for an even cut."""
    text = options.text("pipeline-model-parallel-layout")
    if text is not None:
        counts = [stage.count("t") for stage in _stages(text)]
        if len(counts) % pp:
            raise InputError(
                f"--pipeline-model-parallel-layout has {len(counts)} chunks for {pp} stages; use a multiple"
            )
        mtp = len(model.mtp_layers) if model is not None and "m" in text else 0
        if counts == piece_sizes(sum(counts), pp, len(counts) // pp, mtp=mtp):
            return None
        return tuple(sum(counts[rank::pp]) for rank in range(pp))
    first, last = options.whole("decoder-first-pipeline-num-layers"), options.whole("decoder-last-pipeline-num-layers")
    if (first is None and last is None) or model is None or pp == 1:
        return None
    given = (first is not None) + (last is not None)
    rest = len(model.layers) - (first or 0) - (last or 0)
    if rest < 0 or (pp > given and rest % (pp - given)):
        raise InputError(
            f"--decoder-first-pipeline-num-layers {first} and --decoder-last-pipeline-num-layers {last} leave {rest} layers for"
            f" {pp - given} stages of {vpp} chunks; leave a multiple of the stages"
        )
    middle = [rest // (pp - given)] * (pp - given) if pp > given else []
    return (*((first,) if first is not None else ()), *middle, *((last,) if last is not None else ()))
