"""The plans that are searched: every layout of the GPUs, every precision the cards can run, and how many are legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.engines import traits_of
from trilemma.errors import InputError
from trilemma.estimate.layouts import violations
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import counted
from trilemma.versions import DEFAULT_ENGINE

#: Requests in flight per attention replica that are tried when no load is given, about an eighth apart.
BATCHES = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 44, 48, 56, 64, 72, 80, 88, 96, 112, 128, 144, 160,
    176, 192, 224, 256, 288, 320, 384, 448, 512, 576, 640, 768, 896, 1024,
)  # fmt: skip
#: Nodes that one engine may span where a node does not hold the model, tried in turn.
NODES = (1, 2, 4, 8, 16)

#: Slots that are tried of an engine whose cache is cut into them.
_SLOTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraints:
    """What the user has settled; None is searched. ``expert_parallel`` True spreads experts whole, False never. ``options`` of
    the engine are those of every plan."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    expert_parallel: bool | None = None
    options: ServeOptions = field(default_factory=ServeOptions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layouts:
    """Layouts of engines: those that are legal as a table, how many engines of each stand side by side (``replicas``), how
    many were looked at, and why the others are not legal."""

    layout: Layout
    replicas: NDArray[np.int64]
    searched: int
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def legal(self) -> int:
        return len(self.replicas)


def layouts(
    model: Model, *, gpus: int, fixed: Constraints, gpus_per_node: int | None = None, engine: str = DEFAULT_ENGINE
) -> Layouts:
    """Every (tp, pp, dp) whose engines take all of ``gpus``, experts split and spread, less what the engine refuses.

    ``dp`` of a dense model are independent replicas, of a mixture attention replicas over common experts. Engines may stand
    side by side: those of a mixture may be any part of the whole, and replicas of a dense model are engines of their own
    beyond ``gpus_per_node`` GPUs, or where the ``engine`` has none of its own. A settled ``dp`` asks for one engine. Raises
    `InputError` when the degrees given cannot be laid out.
    """
    _check_fixed(fixed, gpus)
    inside = gpus <= (gpus_per_node or gpus) and not traits_of(engine).in_turn
    one_engine = fixed.dp is not None or (_is_dense(model) and inside)
    sizes = [gpus] if one_engine else _divisors(gpus)
    rows = [row for size in sizes for row in _rows(model, size, fixed, alone=not one_engine)]
    if not rows:
        raise InputError(_no_layout(fixed, gpus))
    return _lawful(model, rows, gpus=gpus, engine=engine)


def engine_layouts(model: Model, *, sizes: Sequence[int], fixed: Constraints, engine: str = DEFAULT_ENGINE) -> Layouts:
    """Layouts of one engine of each of ``sizes`` GPUs, as in `layouts`: replicas of a dense model are engines of their own.
    Degrees settled hold for each engine; sizes that they do not divide have none."""
    rows = [row for size in sizes for row in _rows(model, size, fixed, alone=fixed.dp is None)]
    if not rows:
        raise InputError(_no_layout(fixed, max(sizes)))
    return _lawful(model, rows, engine=engine)


def _rows(model: Model, size: int, fixed: Constraints, *, alone: bool) -> list[tuple[int, int, int, int]]:
    """(tp, pp, dp, ep) of every engine of ``size`` GPUs; ``alone`` keeps dense engines to one replica."""
    dense = _is_dense(model)
    return [
        (tp, pp, size // (tp * pp), ep)
        for tp in _divisors(size)
        for pp in _divisors(size // tp)
        for ep in _expert_groups(model, tp * (size // (tp * pp)), fixed)
        if fixed.tp in (None, tp)
        and fixed.pp in (None, pp)
        and fixed.dp in (None, size // (tp * pp))
        and not (alone and dense and size > tp * pp)
    ]


def _is_dense(model: Model) -> bool:
    return not any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers)


def _lawful(
    model: Model, rows: list[tuple[int, int, int, int]], *, gpus: int | None = None, engine: str = DEFAULT_ENGINE
) -> Layouts:
    """The rows that obey the rules of layouts and of the engine, as many replicas of each as ``gpus`` hold."""
    tp, pp, dp, ep = np.array(rows, dtype=np.int64).T
    everything = Layout(tp=tp, pp=pp, dp=dp, ep=ep)
    good, rejected = np.ones(len(rows), dtype=bool), {}
    for rule, broken in {**violations(model, everything), **_engine_violations(model, everything, engine)}.items():
        newly = good & np.broadcast_to(broken, good.shape)
        if newly.any():
            rejected[rule] = int(newly.sum())
        good &= ~newly
    legal = take(everything, good)
    replicas = np.ones(int(good.sum()), dtype=np.int64) if gpus is None else gpus // np.asarray(legal.gpus)
    return Layouts(layout=legal, replicas=replicas, searched=len(rows), rejected=rejected)


def _engine_violations(model: Model, layout: Layout, engine: str) -> dict[str, NDArray[np.bool_]]:
    """What an engine lays out no model by: some split by layers alone, some by rows of matrices too, and by rows no experts."""
    splits = traits_of(engine).splits
    if splits == "all":
        return {}
    tp, pp, dp, ep = (np.asarray(getattr(layout, name)) for name in ("tp", "pp", "dp", "ep"))
    if splits == "layers":
        return {f"{engine} splits by layers, and nothing else": (dp > 1) | (ep > 1) | (tp > 1)}
    found = {f"{engine} splits by layers or by rows, and nothing else": (dp > 1) | (ep > 1) | ((tp > 1) & (pp > 1))}
    if not _is_dense(model):
        # ggml-org/llama.cpp ggml-cuda: split buffers hold no experts; the mode is deprecated (pull request 22729)
        found[f"{engine} splits no experts by rows (--split-mode row)"] = tp > 1
    return found


def take(layout: Layout, chosen: NDArray[Any]) -> Layout:
    """The rows of a table of layouts that a mask or index array names."""
    return Layout(
        tp=np.asarray(layout.tp)[chosen], pp=np.asarray(layout.pp)[chosen], dp=np.asarray(layout.dp)[chosen],
        ep=np.asarray(layout.ep)[chosen],
    )  # fmt: skip


def joined(tables: Sequence[Layout]) -> Layout:
    """Tables of layouts one below the other."""
    columns = {
        name: np.concatenate([np.asarray(getattr(one, name)) for one in tables]) for name in ("tp", "pp", "dp", "ep")
    }
    return Layout(**columns)


def slots_tried(engine: str, *, gpus: int, concurrency: int | None, fixed: Constraints) -> tuple[int | None, ...]:
    """Slots of an engine whose cache is cut into them (llama.cpp ``--parallel``): powers of two up to the load, and what
    engines side by side are left of it. (None,) for engines that admit what their cache holds."""
    if not traits_of(engine).cache_in_slots or fixed.options.max_seqs is not None:
        return (None,)
    if concurrency is None:
        return _SLOTS
    shares = {-(-concurrency // engines) for engines in _divisors(gpus)}
    most = max(_SLOTS)
    return tuple(sorted({slots for slots in (*_SLOTS, *shares) if slots <= min(concurrency, most)}))


def _expert_groups(model: Model, group: int, fixed: Constraints) -> list[int]:
    """Sizes of the expert-parallel group to try: experts split by every rank (1), or spread whole over all of them."""
    if fixed.expert_parallel is not None:
        return [group if fixed.expert_parallel else 1]
    return [1, group] if not _is_dense(model) and group > 1 else [1]


def _check_fixed(fixed: Constraints, gpus: int) -> None:
    for name in ("tp", "pp", "dp"):
        degree = getattr(fixed, name)
        if degree is not None and (degree < 1 or gpus % degree):
            good = ", ".join(str(d) for d in _divisors(gpus))
            raise InputError(
                f"`{name}` {degree} does not divide the {counted(gpus, 'GPU')} of `gpu`; use one of {good}"
            )


def _no_layout(fixed: Constraints, gpus: int) -> str:
    given = " x ".join(f"`{n}` {getattr(fixed, n)}" for n in ("tp", "pp", "dp") if getattr(fixed, n) is not None)
    return (
        f"{given} cannot be laid out on the {counted(gpus, 'GPU')} of --gpu; their product with the rest must be {gpus}"
    )


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
