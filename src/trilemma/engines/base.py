"""What engines answer with: a start-up, and a command line read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trilemma.errors import PlanWarning
from trilemma.memory.ledger import Ledger
from trilemma.plans import Plan
from trilemma.quantities import Numbers

if TYPE_CHECKING:
    from trilemma.timing.host_weights import HostPart

#: Where start-up ends: running, or the stage at which it dies.
Stage = Literal["ok", "oom_load", "oom_profile", "kv_too_small", "oom_capture", "oom_runtime"]
#: What an engine's memory fraction is a share of; "nothing": it allocates what the options name.
FractionOf = Literal["card", "free before loading", "free after loading", "nothing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KvPool:
    """The cache pool of one engine replica on its tightest rank; numbers or arrays with one entry per plan.

    ``available_bytes`` per GPU may be negative: then no pool exists. ``tokens`` and ``concurrency`` are what the engine
    prints (tokens of one replica, requests of full ``context``); ``need_bytes`` is what one request of full context takes.
    ``bytes_per_token_per_gpu`` is the marginal rate at full context; ``max_context`` the longest request that the pool admits.
    """

    available_bytes: Numbers
    available_low_bytes: Numbers
    available_high_bytes: Numbers
    blocks: Numbers
    block_size: Numbers
    tokens: Numbers
    concurrency: Numbers
    need_bytes: Numbers
    bytes_per_token_per_gpu: Numbers
    max_context: Numbers
    #: Blocks without which the engine refuses whatever the context (a state for each sequence of recurrent models).
    least_blocks: Numbers = 0
    #: Bytes of one request of full context as the engine checks them before it starts, where that is more than it takes.
    checked_bytes: Numbers = 0
    #: Tokens from which on a request takes no more: windows and all that they look back on are full.
    grows_to: Numbers = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class StartUp:
    """What an engine does with a card's memory when it starts: per GPU of the worst rank, numbers or one entry per plan.

    ``ledger`` holds every line, the KV pool among them. ``budget_bytes`` is what the engine gives itself; lines "inside"
    the budget leave ``pool.available_bytes``. ``capacity_bytes`` is the card's runtime total (or what is free of it).
    ``context``, ``max_seqs``, ``max_batched_tokens`` are the options in force, engine defaults filled in.
    ``load_peak_bytes`` is the need while weights are read.
    """

    ledger: Ledger
    capacity_bytes: Numbers
    budget_bytes: Numbers
    pool: KvPool
    memory_fraction: float
    context: int
    max_seqs: Numbers
    max_batched_tokens: Numbers
    kv_format: str
    load_peak_bytes: Numbers
    version: str
    warnings: tuple[PlanWarning, ...] = ()
    #: Half-width (90 %) in bytes of what is left for the cache, by which verdict probabilities are judged.
    spread_bytes: Numbers = 0
    #: What other processes leave of the card; None: all of it. Engines that check refuse a budget above it.
    free_bytes: float | None = None
    budget_checked_at_start: bool = False
    fraction_of: FractionOf = "card"
    #: Weights and cache that stay in the host's memory (layers or experts that are not on a card).
    host_bytes: Numbers = 0
    #: What each pass needs of that memory, for timing; None where nothing but the embedding lies there, and for tables.
    on_host: HostPart | None = None
    #: (matrices, layers) of each card where their kinds differ, for timing.
    on_cards: tuple[tuple[frozenset[str], frozenset[int]], ...] = ()

    @property
    def request_bytes(self) -> Any:
        """Bytes that one request of full ``context`` takes on a GPU; an engine that is told no context asks for less at start."""
        pool = self.pool
        grown = np.asarray(pool.bytes_per_token_per_gpu, dtype=float) * np.minimum(self.context, pool.grows_to)
        return np.maximum(np.asarray(pool.need_bytes, dtype=float), grown)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCommand:
    """An engine's own command line, read: the model it names, the plan, and what was not understood."""

    model: str
    plan: Plan
    unknown_flags: tuple[str, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
