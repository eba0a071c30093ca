"""Slots for adapters that SGLang reserves before it sizes its pool (``--enable-lora``, ``--lora-paths``)."""

from __future__ import annotations

from trilemma.engines.sglang.facts import SglangFacts
from trilemma.errors import PlanWarning
from trilemma.formats.formats import Format
from trilemma.memory.adapter_slots import AdapterSlots
from trilemma.plans import ServeOptions

#: Default of ``--max-loras-per-batch``; the rank that is assumed where only the adapters' own files state one.
_SLOTS, _RANK = 8, 16


def adapter_slots(
    options: ServeOptions, facts: SglangFacts, *, dtype: Format
) -> tuple[AdapterSlots | None, tuple[PlanWarning, ...]]:
    """The slots that a command asks for, and what was assumed of them; none without adapters."""
    extra = options.extra
    if not (extra.get("enable-lora") or extra.get("lora-paths")):
        return None, ()
    stated = extra.get("max-lora-rank")
    given = extra.get("lora-target-modules") or ()
    found = AdapterSlots(
        slots=int(extra.get("max-loras-per-batch") or _SLOTS),
        rank=int(stated or _RANK),
        format=dtype,
        targets=tuple(str(one) for one in (given if isinstance(given, (list, tuple)) else [given])),
        experts=facts.adapters_on_experts,
    )
    assumed = [f"rank {_RANK}"] if stated is None else []
    assumed += [] if given else ["every linear layer"]
    if not assumed:
        return found, ()
    message = (
        f"slots for adapters are counted for {' on '.join(assumed)}; the adapters' own files decide"
        " (--max-lora-rank, --lora-target-modules)"
    )
    return found, (PlanWarning(code="assumed-adapters", message=message),)
