"""Seconds of what lies outside the cards: weights and caches in the memory of the host, worked on there or read over PCIe.

Two ways exist. llama.cpp lets the host's processor multiply what lies there, and from a number of rows on copies weights to
the card for the pass (ggml-backend.cpp, op offload). vLLM's ``--cpu-offload-gb`` has the card read them over PCIe in every
pass. Either way the time is that of bytes over a slow road; what cards hold runs as always.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np

from trilemma.data.files import read_data
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.hosts import Host
from trilemma.models.architecture import Layer, Model
from trilemma.models.identity import ByIdentity
from trilemma.quantities import Numbers
from trilemma.timing.attention import OperatorWork, decode_work, prefill_work
from trilemma.timing.operators import ModelWork, model_work

#: Lines that this module adds to a pass: weights read or copied, caches read, work handed to the host and back.
HOST_LINES = ("host_weights", "host_cache", "handover")
#: What the processor computes in, as a table of operators names it.
_ON_HOST = "host"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPart:
    """What of a model lies in the host's memory, and how an engine works on it.

    ``tensors`` are names; ``layers`` those whose attention and cache are the host's. Products run on the host's processor,
    from ``offload_rows`` rows on by the card with weights copied for the pass; ``read_by_card``: by the card always, with
    weights read over PCIe as it multiplies, or ``copied_whole`` before it does, unneeded experts too. A pass holds
    ``micro_batch`` rows at most. ``locked`` memory is copied faster than memory mapped from a file.
    """

    tensors: frozenset[str]
    layers: frozenset[int] = frozenset()
    read_by_card: bool = False
    copied_whole: bool = False
    offload_rows: float = np.inf
    micro_batch: float = np.inf
    locked: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class HostWork:
    """The host's part of a model: ``work`` is what `model_work` makes of its tensors and layers.

    ``handovers`` counts how often a pass goes from the cards to the host and back. ``on_cards`` is what cards do where they
    multiply: weights that they read over PCIe as they go never reach their own memory.
    """

    work: ModelWork
    part: HostPart
    handovers: int
    on_cards: ModelWork


@dataclass(frozen=True, kw_only=True, slots=True)
class HostRates:
    """What a host reaches: reading and multiplying on its processor, copying to a card, handing work over and back."""

    read_bytes_per_s: float
    flops_per_s: float
    copy_bytes_per_s: float
    handover_s: float

    @classmethod
    def of(cls, cluster: Cluster, part: HostPart) -> HostRates:
        """Rates of the cluster's host; where host and card share one memory nothing is copied.

        No copy is faster than the memory that it is made from.
        """
        data, memory = _data(), cluster.around.bytes_per_s.value
        share = data["copies"]["locked" if part.locked else "mapped"]
        return cls(
            read_bytes_per_s=memory * data["stream"]["value"],
            flops_per_s=data["compute"]["flops_per_s"],
            copy_bytes_per_s=_copied(cluster, share),
            handover_s=data["handover"]["seconds"],
        )

    @classmethod
    def at_datasheet(cls, cluster: Cluster) -> HostRates:
        """The host's memory and PCIe at their full rates, arithmetic and handing over for nothing."""
        memory = cluster.around.bytes_per_s.value
        return cls(
            read_bytes_per_s=memory,
            flops_per_s=np.inf,
            copy_bytes_per_s=_copied(cluster, 1.0),
            handover_s=0.0,
        )


def copied_bytes_per_s(cluster: Cluster, *, ranks: int = 1) -> float:
    """Bytes/s from the host's locked memory to each of ``ranks`` cards at once; infinite where both share one memory.

    A number. Source: ``[copies]`` of ``data/coefficients/host_memory.toml``, and no faster than the memory that it is read from.
    """
    if cluster.accelerator.unified_memory:
        return np.inf
    return min(_copied(cluster, _data()["copies"]["locked"]), cluster.around.bytes_per_s.value / ranks)


def _copied(cluster: Cluster, share: float) -> float:
    """Bytes/s from the host to a card at ``share`` of what joins them; infinite where both share one memory."""
    road = cluster.accelerator.host_bytes_per_s
    if cluster.accelerator.unified_memory or road is None:
        return np.inf
    return min(road.value * share, cluster.around.bytes_per_s.value)


class LineTally(Protocol):
    """What a pass adds its lines to (`trilemma.timing.forward_pass`)."""

    def add(self, line: str, resource: str, seconds: Any) -> None: ...

    def moved(self, line: str, work: OperatorWork, *, computed_in: str, repeats: Numbers) -> None: ...


def split_work(model: Model, accelerator: Accelerator, part: HostPart | None) -> ModelWork:
    """``model``'s work with ``part`` taken off the cards: theirs, and the rest in its field ``host``."""
    if part is None or not (part.tensors or part.layers):
        return model_work(model, accelerator)
    cards, host, handovers = halves(model, part.tensors, part.layers)
    work = model_work(host, accelerator)
    away = HostWork(
        work=work, part=part, handovers=handovers, on_cards=_weightless(work) if part.read_by_card else work
    )
    return replace(model_work(cards, accelerator), host=away)


def _weightless(work: ModelWork) -> ModelWork:
    """``work`` without the traffic of its weights."""
    dense = tuple(replace(product, bytes=0) for product in work.dense)
    return replace(work, dense=dense, experts=tuple(replace(expert, bytes=0) for expert in work.experts))


def halves(model: Model, tensors: frozenset[str], mixers: frozenset[int]) -> tuple[Model, Model, int]:
    """``model`` without the tensors and the attention of the layers named, with nothing but these, and how often a pass goes
    from the first to the second and back."""
    return _halves(ByIdentity(model), tensors, mixers)


@lru_cache(maxsize=64)
def _halves(same_model: ByIdentity, tensors: frozenset[str], mixers: frozenset[int]) -> tuple[Model, Model, int]:
    """Remembered, so that `model_work` finds the same models again."""
    model = same_model.value
    assert isinstance(model, Model)
    away = [tensor for tensor in model.tensors if tensor.name in tensors]
    stay = [tensor for tensor in model.tensors if tensor.name not in tensors]
    on_host, on_cards = ({t.layer for t in half if _feeds(t.role)} for half in (away, stay))
    cards = tuple(
        _half(layer, layer.index not in mixers, layer.index not in on_host - on_cards) for layer in model.layers
    )
    host = tuple(_half(layer, layer.index in mixers, layer.index in on_host) for layer in model.layers)
    return (
        replace(model, tensors=tuple(stay), layers=cards),
        replace(model, tensors=tuple(away), layers=host, tied_embeddings=False),
        _handovers(model, mixers, on_host),
    )


def _feeds(role: str) -> bool:
    return role.partition(".")[0] in ("ffn", "experts")


def _half(layer: Layer, mixer: bool, ffn: bool) -> Layer:
    return replace(layer, mixer=layer.mixer if mixer else None, ffn=layer.ffn if ffn else None)


def _handovers(model: Model, mixed: Set[int], fed: Set[int | None]) -> int:
    """Runs of layers that are the host's in full count once, any other piece of a layer there counts by itself."""
    count, inside = 0, False
    for layer in model.layers:
        mixer = layer.mixer is None or layer.index in mixed
        ffn = layer.ffn is None or layer.index in fed
        whole = mixer and ffn
        part = layer.index in mixed or layer.index in fed
        count += part and not (whole and inside)
        inside = whole
    return count


def decode_on_host(
    tally: LineTally, away: HostWork, rates: HostRates, *, rows: Numbers, sequences: Numbers, context: Numbers,
    kv_format: Format, evenness: Numbers, tp: Numbers = 1,
) -> Any:  # fmt: skip
    """Adds the host's lines of a decode step over ``rows`` tokens of ``sequences`` sequences; True where products run on cards.

    The processor reads each weight, and each expert that the rows wake, once: ``max(bytes / rate, FLOPs / rate)``.

    Seconds, numbers or arrays (plans,). By definition the roofline of the processor (Williams et al. 2009).
    """
    over = _weights(tally, away, rates, rows=rows, passes=1.0, evenness=evenness, head_rows=rows, tp=tp)
    for mixer, count in away.work.mixers:
        one = decode_work(mixer, context=context, tp=1, kv_format=kv_format)
        _read(
            tally,
            "host_cache",
            OperatorWork(flops=one.flops * rows * count, bytes=one.bytes * sequences * count),
            rates,
        )
    tally.add("handover", "host", away.handovers * rates.handover_s)
    return over


def prefill_on_host(
    tally: LineTally, away: HostWork, rates: HostRates, *, tokens: Numbers, cached: Numbers, prompts: Numbers, kv_format: Format,
    tp: Numbers = 1,
) -> Any:  # fmt: skip
    """Adds the host's lines of ``prompts`` prompts, run in passes of the part's micro-batch; True where products run on cards.

    Every pass copies or reads the weights anew. Attention of the host's layers stays on its processor.

    Seconds, numbers or arrays (plans,). Source: llama.cpp's ggml-backend.cpp and ``op_offload`` of llama-context.cpp.
    """
    rows = np.asarray(tokens, dtype=float) * prompts
    passes = np.maximum(np.ceil(rows / away.part.micro_batch), 1.0)
    evenness = _data()["prompt"]["evenness"]
    over = _weights(
        tally, away, rates, rows=rows / passes, passes=passes, evenness=evenness, head_rows=prompts / passes, tp=tp
    )
    for mixer, count in away.work.mixers:
        one = prefill_work(mixer, tokens=tokens, cached=cached, tp=1, kv_format=kv_format)
        _read(tally, "host_cache", one.times(np.asarray(prompts, dtype=float) * count), rates)
    tally.add("handover", "host", away.handovers * rates.handover_s * passes)
    return over


def _weights(
    tally: LineTally, away: HostWork, rates: HostRates, *, rows: Numbers, passes: Numbers, evenness: Numbers, head_rows: Numbers,
    tp: Numbers,
) -> Any:  # fmt: skip
    """Products of ``passes`` passes of ``rows`` rows; where they run on cards only the way of the weights is counted here."""
    part = away.part
    over = np.asarray(rows) >= (0.0 if part.read_by_card else part.offload_rows)
    works = [(product.work(rows, 1), product.bytes * product.share(tp)) for product in away.work.dense]
    works += [(product.work(head_rows, 1), product.bytes * product.share(tp)) for product in away.work.head]
    for expert in away.work.experts:
        needed = expert.experts if part.copied_whole else expert.active(rows, evenness=evenness)
        stored = expert.layers * expert.bytes * needed / expert.experts / tp
        works.append((expert.work(rows, 1, tile_rows=1, evenness=evenness), stored))
    for work, stored in works:
        _read(tally, "host_weights", work.times(np.where(over, 0.0, passes)), rates)
        copied = OperatorWork(bytes=stored * np.where(over, passes, 0.0))
        tally.moved("host_weights", copied, computed_in=_ON_HOST, repeats=1.0)
        tally.add("host_weights", "interconnect", copied.bytes / rates.copy_bytes_per_s)
    return over


def _read(tally: LineTally, line: str, work: OperatorWork, rates: HostRates) -> None:
    tally.moved(line, work, computed_in=_ON_HOST, repeats=1.0)
    tally.add(line, "host", np.maximum(work.flops / rates.flops_per_s, work.bytes / rates.read_bytes_per_s))


def host_spread(host: Host, part: HostPart, *, prompt: bool) -> tuple[float, float]:
    """(low, high) factors of the host's seconds that hold nine of ten machines: what its kernels reach, and which host it is.

    Logarithms add in quadrature: the two are independent. ``prompt``: long batches, whose weights are copied or whose
    arithmetic binds.

    Two numbers. Source: the ranges of ``data/coefficients/host_memory.toml``.
    """
    data = _data()
    if prompt:
        rows = data["copies"] if part.offload_rows < np.inf or part.read_by_card else data["compute"]
        value = 1.0 if "locked" in rows else rows["flops_per_s"]
        low, high = (
            (rows["low"], rows["high"]) if "locked" in rows else (rows["low_flops_per_s"], rows["high_flops_per_s"])
        )
        return value / high, value / low
    if part.read_by_card:
        return 1 / data["copies"]["high"], 1 / data["copies"]["low"]
    share, rate = data["stream"], host.interval
    faster = np.hypot(np.log(share["high"] / share["value"]), np.log(rate.high / rate.value))
    slower = np.hypot(np.log(share["value"] / share["low"]), np.log(rate.value / rate.low))
    return float(np.exp(-faster)), float(np.exp(slower))


@cache
def _data() -> Mapping[str, Any]:
    return read_data("coefficients/host_memory.toml")
