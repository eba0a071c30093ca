"""What an implementation is searched with where nothing is settled: recompute, sharding, recipes, loss."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.plans.training import Attention, Implementation, Loss, Recompute

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
#: torchtitan recomputes by operator.
_OPERATOR_LADDER = (Recompute(mode="full"), Recompute(mode="op"), Recompute())


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """What an implementation is searched with where nothing is settled."""

    ladder: tuple[Recompute, ...]
    stages: tuple[int, ...]
    recipes: tuple[str, ...]
    narrow_recipes: tuple[str, ...] = ()
    optimizer: str = "adamw-like-weights"
    attention: Attention = "sdpa"
    compiled: bool = False
    loss: Loss = "full"
    overlap: bool | None = None


def habits_of(implementation: Implementation, *, mixture: bool, adapters: bool) -> Habits:
    """Megatron-LM: BF16 and low precision with ZeRO-1 beside everything; torchtitan: FSDP2, compiled, chunked loss; DeepSpeed
    ZeRO; the others replicas, or FSDP under Accelerate; adapters in BF16, as torchtune, NeMo and TRL's QLoRA hold them. Narrow
    recipes are those of cards with such matrix units."""
    if implementation == "megatron":
        return Habits(
            ladder=_MIXTURE_LADDER if mixture else RECOMPUTE_LADDER, stages=(1, 2, 3), recipes=("bf16",),
            narrow_recipes=("fp8-bf16-grads", "mxfp8-bf16-grads"), optimizer="adamw", attention="flash", overlap=True,
        )  # fmt: skip
    if implementation == "torchtitan":
        return Habits(
            ladder=_OPERATOR_LADDER, stages=(3,), recipes=("fsdp",), narrow_recipes=("fsdp-fp8", "fsdp-fp8"), compiled=True,
            loss="chunked",
        )  # fmt: skip
    plain = (Recompute(mode="full"), Recompute())
    if implementation == "deepspeed":
        return Habits(ladder=plain, stages=(1, 2, 3), recipes=("zero-bf16",), optimizer="adamw")
    if implementation in ("accelerate", "llm-foundry", "litgpt") and not adapters:
        return Habits(ladder=plain, stages=(3,), recipes=("fsdp",))
    # Adapters over ranks: replicas, or the frozen weights sharded too where they do not fit.
    return Habits(ladder=plain, stages=(0, 3), recipes=("pure-bf16",))
