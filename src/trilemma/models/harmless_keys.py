"""Configuration keys that change no tensor and no cache: training, generation, numerics, tokens, bookkeeping."""

from __future__ import annotations

from functools import cache

from trilemma.data.digest import DATA

#: Ends of key names that mark tokens, losses and the like wherever they stand.
_ENDS = (
    "_token_id", "_token_index", "_token", "_tokens", "_loss_coef", "_eps", "_epsilon", "_dropout", "_theta",
    "_multiplier", "_act", "_softcapping", "_jitter",
)  # fmt: skip


def is_harmless(key: str) -> bool:
    """Whether a configuration key changes neither tensors nor caches."""
    return key in _keys() or key.endswith(_ENDS) or key.startswith("_")


@cache
def _keys() -> frozenset[str]:
    lines = (DATA / "harmless_config_keys.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
