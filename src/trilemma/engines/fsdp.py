"""FSDP as Accelerate, the Trainer of Transformers and Axolotl configure it: both versions, keys prefixed or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.commands.option_words import truth, whole
from trilemma.engines.training import framework_facts
from trilemma.engines.transformers.run import Sharding
from trilemma.errors import InputError, shorten


def fsdp_sharding(
    words: Sequence[str], config: Mapping[str, Any], *, version: Any = None, group: int | None = None
) -> tuple[Sharding, tuple[str, ...]]:
    """How state is spread, and the keys and words that nothing here knows.

    ``words`` are those of ``fsdp: [full_shard, auto_wrap, offload]``, ``config`` the contents of ``fsdp_config``; ``version``
    stands outside of it in Axolotl. ``group`` is the number of ranks that share one copy where a mesh states it.
    Raises `InputError` for a value that cannot be.
    """
    facts = framework_facts("fsdp_keys")
    plain = {str(key).removeprefix("fsdp_"): value for key, value in config.items()}
    known = {*facts["counted"], *facts["passed"]}
    unknown = [f"fsdp_config.{key}" for key in config if str(key).removeprefix("fsdp_") not in known]
    lowered = [word.lower() for word in words]
    unknown += [f"fsdp: {word}" for word in lowered if word not in facts["strategies"] and word not in facts["words"]]
    stated = plain.get("version") if plain.get("version") is not None else version
    number = whole(1 if stated is None else stated, "fsdp_version", high=2)
    zero, reshard, hybrid = _strategy(plain, lowered, facts)
    moved = 1.0 if _on(plain, "offload_params") or _on(plain, "cpu_offload") or "offload" in lowered else 0.0
    found = Sharding(
        by="fsdp", version=number, zero=zero, reshard=reshard, group=group if zero else None,
        hybrid=hybrid and group is None, offload_optimizer=moved if zero else 0.0, offload_weights=moved if zero else 0.0,
        checkpointing=_on(plain, "activation_checkpointing"),
    )  # fmt: skip
    return found, tuple(unknown)


def _strategy(plain: Mapping[str, Any], words: Sequence[str], facts: Mapping[str, Any]) -> tuple[int, bool, bool]:
    """ZeRO stage, whether gathered blocks are freed, whether only nodes hold copies. FSDP2 asks for the second alone; older
    files write FSDP1's strategy in its place."""
    strategies = facts["strategies"]
    zero, reshard, hybrid = strategies[next((word for word in words if word in strategies), "full_shard")]
    given = plain.get("sharding_strategy")
    again = plain.get("reshard_after_forward")
    if isinstance(again, str) and again.lower() in strategies and not again.isdigit():
        given, again = again, None
    if given is not None:
        if str(given).lower() not in strategies:
            named = ", ".join(key.upper() for key in strategies if not key.isdigit())
            raise InputError(f"fsdp_config.fsdp_sharding_strategy {shorten(str(given))!r} is not known; use {named}")
        zero, reshard, hybrid = strategies[str(given).lower()]
    if again is not None:
        reshard = truth(again, "fsdp_config.fsdp_reshard_after_forward")
    return zero, reshard, hybrid


def _on(plain: Mapping[str, Any], key: str) -> bool:
    value = plain.get(key)
    return value is not None and truth(value, f"fsdp_config.fsdp_{key}")
