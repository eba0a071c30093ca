# ruff: noqa: ARG002
"""A kind of attention that nobody knows: what it lacks is said at once, what it has reaches every room, nothing is silent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from trilemma.engines.megatron.architecture import flags_of_model
from trilemma.errors import InputError
from trilemma.estimate.layouts import violations
from trilemma.formats import catalogue
from trilemma.memory.layer_facts import kinds
from trilemma.memory.saved_tensors import layer_tensors
from trilemma.memory.traits import modelling_traits
from trilemma.models.architecture import DenseFfn, Layer, Model
from trilemma.models.attention import (
    AttentionKind,
    CompressedAttention,
    KernelShape,
    LatentAttention,
    RecurrentState,
    SoftmaxAttention,
)
from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.decoder import Decoder, LayerPlan, build
from trilemma.models.cache_law import CacheLaw, no_bytes
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, ServeOptions
from trilemma.timing.attention import decode_work, prefill_work
from trilemma.timing.flops_conventions import attention_flops_per_token
from trilemma.timing.training_operators import training_work

_HIDDEN = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Quartered(AttentionKind):
    """Keeps one vector of ``width`` for every fourth token, whole on every rank."""

    pages: ClassVar[Any] = "rows"
    is_latent: ClassVar[bool] = False
    is_compressed: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    saved_measured: ClassVar[bool] = False
    serving_kernels: ClassVar[int] = 5
    training_kernels: ClassVar[int] = 11

    heads: int = 32
    width: int = 512

    label = "quartered"
    is_sparse = False
    rotary_width = 0
    value_width = 128
    pointwise_width = 0.0
    exchanged_width = 512.0

    @property
    def cache_key(self) -> tuple[object, ...]:
        return ("quartered", self.width)

    @property
    def cache_formula(self) -> str:
        return f"{self.width} x bytes per 4 tokens"

    def add_tensors(self, add: Builder, hidden: int, layer: LayerPlan) -> None:
        add.linear("attn.all", "attention.q", self.width, hidden)

    def cache_laws(self, *, tp: Any, kv_format: Any, indexer_format: Any = None, speculative_tokens: int = 0) -> Any:
        return (CacheLaw(kind="quartered", bytes_per_token=self.width * kv_format.bits / 8 + no_bytes(tp), stride=4),)

    def decode_flops(self, context: Any, *, tp: Any, dcp: Any) -> Any:
        return 3.0 * context

    def prefill_flops(self, tokens: Any, cached: Any, *, tp: Any) -> Any:
        return 5.0 * tokens

    def unmasked_flops(self, seq: int) -> float:
        return 7.0 * seq

    def decode_kernel(self, *, batch: float, context: float, tp: int) -> KernelShape | None:
        return None


def _model(mixer: Any) -> Model:
    model = load_model("llama-3.1-8b")
    layers = tuple(Layer(index=layer.index, mixer=mixer, ffn=layer.ffn) for layer in model.layers)
    return replace(model, layers=layers)


def test_a_kind_without_a_law_cannot_be_made() -> None:
    class Lawless(Quartered):
        __slots__ = ()
        cache_laws = AttentionKind.cache_laws

    with pytest.raises(TypeError, match="cache_laws"):
        Lawless()


@pytest.mark.parametrize("trait", ["pages", "keeps_state", "training_kernels", "saved_measured"])
def test_a_kind_that_leaves_a_trait_out_is_refused_when_it_is_defined(trait: str) -> None:
    stated = {"pages": "rows", "is_latent": False, "is_compressed": False, "keeps_state": False}
    stated |= {"saved_measured": True, "serving_kernels": 1, "training_kernels": 1}
    del stated[trait]
    with pytest.raises(TypeError, match=f"Silent does not state {trait}"):
        type("Silent", (AttentionKind,), stated)


@pytest.mark.parametrize("kind", [SoftmaxAttention, LatentAttention, CompressedAttention, RecurrentState])
def test_every_kind_brings_everything(kind: type[AttentionKind]) -> None:
    assert not getattr(kind, "__abstractmethods__", frozenset())
    assert kind.pages in ("rows", "parts", "state")
    assert kind.serving_kernels > 0
    assert kind.training_kernels > kind.serving_kernels


def test_its_tensors_are_built() -> None:
    add = Builder(dtype=catalogue.get("bf16"))
    plan = LayerPlan(mixer=Quartered(), ffn=DenseFfn(intermediate=64))  # type: ignore[arg-type]
    build(add, Decoder(hidden=_HIDDEN, vocab=100, layers=[plan]))
    (found,) = [tensor for tensor in add.tensors if tensor.role == "attention.q"]
    assert found.shape == (512, _HIDDEN)
    assert found.name == "model.layers.0.attn.all.weight"


def test_its_law_and_work_reach_every_room() -> None:
    from trilemma.engines.layer_cache import layer_caches
    from trilemma.measured.serving.memory.classes import family_kind

    mixer: Any = Quartered()
    model = _model(mixer)
    bf16 = catalogue.get("bf16")
    (cache,) = {id(one): one for one in layer_caches(model.layers, tp=np.array([1, 2]), kv_format=bf16)}.values()
    assert cache.full.tolist() == [256.0, 256.0]
    work = decode_work(mixer, context=4000, tp=2, kv_format=bf16)
    assert (float(work.flops), float(work.bytes)) == (12_000.0, 1024 * 1000)
    assert float(prefill_work(mixer, tokens=10, cached=0, tp=1, kv_format=bf16).flops) == 50.0
    train = training_work(model)
    assert attention_flops_per_token(train, 100, causal=False) == 32 * 700.0
    assert train.kv_width == 32 * 512
    assert family_kind(model) == "quartered"
    assert "tp does not divide the 32 attention heads" in violations(model, Layout(tp=3))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "tensorrt-llm"])
def test_engines_size_its_pool_by_its_law(engine: str) -> None:
    """512 elements of 2 bytes for every fourth token of 32 layers: 8,192 bytes a token."""
    from trilemma.estimate.serving import estimate
    from trilemma.hardware.catalogue import find
    from trilemma.hardware.cluster import Cluster
    from trilemma.plans import EngineRef, Plan, Pool
    from trilemma.question import Question
    from trilemma.workloads import Serving

    cluster = Cluster(accelerator=find("h100-sxm"), gpus=1, gpus_per_node=8)
    pool = Pool(layout=Layout(), options=ServeOptions(context=8192))
    asked = Question(
        model=_model(Quartered()), cluster=cluster, workload=Serving(isl=4096, osl=64, concurrency=8),
        plan=Plan(engine=EngineRef(name=engine), pools=(pool,)),
    )  # fmt: skip
    answer = estimate(asked)
    assert answer.cache is not None
    assert answer.cache.bytes_per_token == 32 * 256
    # llama.cpp has a slot of the context's length for each reader
    assert answer.cache.tokens.value == 8 * 8192 if engine == "llama.cpp" else answer.cache.tokens.value > 5e6


def test_what_autograd_keeps_is_asked_for_by_name() -> None:
    model = _model(Quartered())
    facts = kinds(model)[0][0]
    with pytest.raises(AssertionError, match="Quartered"):
        layer_tensors(facts, modelling_traits("transformers", "llama"), attention="flash")


def test_a_trainer_that_has_no_flags_for_it_refuses() -> None:
    with pytest.raises(InputError, match="one kind of attention"):
        flags_of_model(_model(Quartered()))
