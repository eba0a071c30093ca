"""What an implementation is searched with where nothing is settled: recompute, sharding, recipes, loss."""

from __future__ import annotations

from trilemma.plans.frameworks import Habits, every
from trilemma.plans.training import Recompute
from trilemma.workloads import Method

#: Modes of recompute from the leanest in memory to the fastest: what fits with one need not be tried with a leaner one.
RECOMPUTE_LADDER = (
    Recompute(mode="full"),
    Recompute(mode="selective", parts=("layernorm", "mlp")),
    Recompute(mode="selective", parts=("core_attn",)),
    Recompute(),
)
#: Of mixtures the activation between an expert's matrices is computed again, not the exchange of tokens.
_MIXTURE_LADDER = (
    Recompute(mode="full"),
    Recompute(mode="selective", parts=("layernorm", "moe_act")),
    Recompute(mode="selective", parts=("core_attn",)),
    Recompute(),
)
#: By operator, as torchtitan does, and by whole layers.
_OPERATOR_LADDER = (Recompute(mode="full"), Recompute(mode="op"), Recompute())
_LAYER_LADDER = (Recompute(mode="full"), Recompute())


def habits_of(implementation: str, *, method: Method) -> Habits:
    """The habits of a framework: full training, adapters and adapters on quantised weights apart where they differ."""
    traits = every()[implementation]
    if method == "full":
        return traits.habits
    return traits.habits_of_quantised if method == "qlora" else traits.habits_of_adapters


def ladder_of(habits: Habits, *, mixture: bool) -> tuple[Recompute, ...]:
    """What is tried of recompute, the leanest first."""
    if habits.ladder == "parts":
        return _MIXTURE_LADDER if mixture else RECOMPUTE_LADDER
    return _OPERATOR_LADDER if habits.ladder == "operators" else _LAYER_LADDER
