"""Slots for adapters that vLLM reserves while it loads (``--enable-lora``)."""

from __future__ import annotations

from typing import Any

from trilemma.engines.vllm.facts import VllmFacts
from trilemma.errors import InputError, PlanWarning
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.memory.adapter_slots import AdapterSlots
from trilemma.plans import ServeOptions

#: Defaults of vllm/config/lora.py, LoRAConfig.
_SLOTS, _RANK = 1, 16


def adapter_slots(
    options: ServeOptions, facts: VllmFacts, *, dtype: Format
) -> tuple[AdapterSlots | None, tuple[PlanWarning, ...]]:
    """The slots that a command asks for, and what was assumed of them (nothing); none without ``--enable-lora``. Raises
    `InputError` for an unknown ``--lora-dtype``."""
    extra = options.extra
    if not extra.get("enable-lora"):
        return None, ()
    stated = str(extra.get("lora-dtype") or "auto")
    found = AdapterSlots(
        slots=int(extra.get("max-loras") or _SLOTS),
        rank=int(extra.get("max-lora-rank") or _RANK),
        format=dtype if stated == "auto" else _format(stated),
        targets=_names(extra.get("lora-target-modules")),
        experts=facts.adapters_on_experts,
        sharded=bool(extra.get("fully-sharded-loras")),
    )
    return found, ()


def _names(given: Any) -> tuple[str, ...]:
    return () if not given else tuple(str(one) for one in (given if isinstance(given, (list, tuple)) else [given]))


def _format(name: str) -> Format:
    known = {"float16": "fp16", "bfloat16": "bf16"}
    if name not in known:
        raise InputError(f"--lora-dtype {name[:60]!r} is none of auto, float16, bfloat16")
    return catalogue.get(known[name])
