"""Cards of several kinds in one machine, as ``--gpu rtx-4090+rtx-3090:2`` names them."""

from __future__ import annotations

from trilemma.errors import InputError, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.gpu_argument import parse_gpu_argument

#: More cards of several kinds than this are no machine.
_MOST = 64


def parse_gpus(text: str) -> tuple[Accelerator, int, tuple[Accelerator, ...]]:
    """(first accelerator, how many, each one) of ``G[:N]`` or ``G[:N]+G[:N]``; "each" is empty where all are of one kind.

    The order is that in which an engine fills them. Raises `InputError`.
    """
    words = text.split("+")
    if len(words) == 1:
        return *parse_gpu_argument(text), ()
    found: list[Accelerator] = []
    for word in words:
        accelerator, number = parse_gpu_argument(word.strip())
        if len(found) + number > _MOST:
            raise InputError(f"`gpu` {shorten(text)!r} names more than {_MOST} cards of several kinds; name fewer")
        found += [accelerator] * number
    alike = all(card is found[0] for card in found)
    return found[0], len(found), () if alike else tuple(found)
