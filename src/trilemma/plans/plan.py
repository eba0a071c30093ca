"""How a model runs: GPUs, layout, precision and engine options. A plan knows nothing of its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from trilemma.errors import InputError
from trilemma.quantities import Numbers
from trilemma.versions import DEFAULT_ENGINE

_DEGREES = ("tp", "pp", "dp", "ep", "cp", "dcp", "vpp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of parallelism of one pool; each field is a number or an array with one entry per plan.

    ``tp`` tensor, ``pp`` pipeline, ``dp`` data (for serving: engine replicas with attention of their own), ``cp`` context,
    ``dcp`` decode context parallelism (a divisor of ``tp``: splits cached tokens among the ranks that would hold copies).
    ``ep`` is the size of the group over which whole experts are spread; 1 splits every expert by ``tp`` instead.
    ``vpp`` is the number of model chunks that each pipeline stage holds in turn (training).
    """

    tp: Numbers = 1
    pp: Numbers = 1
    dp: Numbers = 1
    ep: Numbers = 1
    cp: Numbers = 1
    dcp: Numbers = 1
    vpp: Numbers = 1

    def __post_init__(self) -> None:
        for name in _DEGREES:
            value = np.asarray(getattr(self, name))
            if value.size and (not np.issubdtype(value.dtype, np.integer) or value.min() < 1 or value.max() > 2**20):
                raise InputError(f"`{name}` {getattr(self, name)} is out of range; give a whole number of at least 1")

    @property
    def gpus(self) -> Any:
        """GPUs that the layout occupies: ``tp · pp · dp · cp`` (``ep``, ``dcp`` and ``vpp`` add none)."""
        return (
            np.asarray(self.tp) * self.pp * self.dp * self.cp
            if self.is_table
            else self.tp * self.pp * self.dp * self.cp
        )

    @property
    def is_table(self) -> bool:
        """Whether any degree is an array, so that the layout stands for a table of plans."""
        return any(isinstance(getattr(self, name), np.ndarray) for name in _DEGREES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Speculative decoding: ``method`` (mtp, eagle, eagle3, draft, ngram, …), ``tokens`` proposed a step, the draft ``model``.

    ``acceptance`` is accepted over drafted tokens, as engines print it.
    """

    method: str
    tokens: int = 1
    model: str | None = None
    acceptance: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """Options of a serving engine in this project's own words; None means the engine's own default.

    Names that differ between engines meet here: ``memory_fraction`` is ``--gpu-memory-utilization`` of vLLM and
    ``--mem-fraction-static`` of SGLang; ``context`` is ``--max-model-len`` and ``--context-length``.
    ``max_seqs`` and ``max_batched_tokens`` may be arrays, one entry per plan. ``cuda_graph_sizes`` are the batch sizes
    captured. ``extra`` keeps options that were understood but have no field (flag → value).
    """

    memory_fraction: float | None = None
    kv_cache_bytes: int | None = None
    context: int | None = None
    max_seqs: Numbers | None = None
    max_batched_tokens: Numbers | None = None
    block_size: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    quantization: str | None = None
    eager: bool = False
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    cuda_graph_sizes: tuple[int, ...] | None = None
    multimodal_limits: Mapping[str, int] | None = None
    text_only: bool = False
    mamba_cache_mode: str | None = None
    cpu_offload_bytes: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRef:
    """Which engine runs the plan, and which version of its facts; None asks for the newest known."""

    name: str = DEFAULT_ENGINE
    version: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """GPUs that do one job in one layout: most plans are one pool; prefill and decode apart are two.

    ``replicas`` counts engines of this layout side by side, each a process of its own behind a router.
    """

    role: Literal["serve", "prefill", "decode", "encode", "train"] = "serve"
    layout: Layout = field(default_factory=Layout)
    options: ServeOptions = field(default_factory=ServeOptions)
    draft: Draft | None = None
    replicas: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= 2**20:
            raise InputError(f"a pool of {self.replicas} replicas is out of range; give a whole number of at least 1")

    @property
    def gpus(self) -> Any:
        """GPUs of all replicas together."""
        return self.layout.gpus * self.replicas


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The pools of a plan and the engine that runs them."""

    engine: EngineRef = field(default_factory=EngineRef)
    pools: tuple[Pool, ...] = (Pool(),)

    def __post_init__(self) -> None:
        if not self.pools:
            raise InputError("a plan needs at least one pool of GPUs")

    @property
    def pool(self) -> Pool:
        """The only pool of a plan that has one."""
        if len(self.pools) != 1:
            raise InputError(f"this plan has {len(self.pools)} pools where one is expected")
        return self.pools[0]

    @property
    def gpus(self) -> Any:
        """GPUs of all pools together."""
        return sum(pool.gpus for pool in self.pools)
