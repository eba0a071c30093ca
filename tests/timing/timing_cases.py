"""Small hand-made models and cards for the tests of timing."""

from __future__ import annotations

from dataclasses import replace

from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator, Figure, Link
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import DenseFfn, ExpertFfn, Layer, Model, Quantization, Shard, Tensor
from trilemma.models.attention import SoftmaxAttention

BF16 = catalogue.get("bf16")
FP8 = catalogue.get("fp8_tensor")
INT4 = catalogue.get("int4_g128")
NVFP4 = catalogue.get("nvfp4")
MXFP4 = catalogue.get("mxfp4")


def figure(value: float) -> Figure:
    return Figure(value=value, source="test")


def card(
    *, bandwidth: float = 3.35e12, bf16: float = 989.4e12, link: float | None = 450e9, capability: float = 9.0
) -> Accelerator:
    """A card with the figures of an H100 SXM."""
    return Accelerator(
        id="card", name="card", vendor="NVIDIA", architecture="Hopper", compute_capability=capability, label_gb=80,
        nvml_total_bytes=None, runtime_total_bytes=figure(85e9), bandwidth_bytes_per_s=figure(bandwidth),
        peak_flops={"bf16": figure(bf16), "fp8": figure(2 * bf16)}, hardware_formats=("bf16", "fp16", "fp8"),
        link=Link(name="link", bytes_per_s=figure(link), domain=8) if link else None, pcie_bytes_per_s=figure(63e9),
    )  # fmt: skip


def cluster(accelerator: Accelerator | None = None, *, gpus: int = 8, network: float | None = 50e9) -> Cluster:
    return Cluster(accelerator=accelerator or card(), gpus=gpus, gpus_per_node=8, network_bytes_per_s=network)


def _layer_tensors(index: int, hidden: int, mixer: SoftmaxAttention, size: int, stored: Format) -> list[Tensor]:
    q, kv = mixer.heads * mixer.k_dim, mixer.kv_heads * mixer.k_dim

    def linear(name: str, out: int, inp: int, shard: Shard, units: int) -> Tensor:
        return Tensor(
            name=f"{index}.{name}", role=name, shape=(out, inp), format=stored, layer=index, shard=shard,
            shard_units=units, quantizable=True,
        )  # fmt: skip

    return [
        linear("attention.q", q, hidden, "column", mixer.heads),
        linear("attention.k", kv, hidden, "column", mixer.kv_heads),
        linear("attention.v", kv, hidden, "column", mixer.kv_heads),
        linear("attention.o", hidden, q, "row", mixer.heads),
        linear("ffn.gate", size, hidden, "column", size),
        linear("ffn.up", size, hidden, "column", size),
        linear("ffn.down", hidden, size, "row", size),
        Tensor(name=f"{index}.norm", role="norm", shape=(hidden,), format=BF16, layer=index),
    ]


def llama_70b(stored: Format = BF16, *, vocab: int = 32000) -> Model:
    """Llama-2-70B: 80 layers, 64 heads, 8 KV heads of 128, 8192 wide, 28672 inside (arXiv:2307.09288)."""
    mixer = SoftmaxAttention(heads=64, kv_heads=8, k_dim=128, v_dim=128)
    tensors = [
        Tensor(
            name="embedding",
            role="embedding",
            shape=(vocab, 8192),
            format=BF16,
            part="embedding",
            shard="vocab",
            shard_units=vocab,
        ),
        Tensor(
            name="head", role="head", shape=(vocab, 8192), format=BF16, part="head", shard="vocab", shard_units=vocab
        ),
    ]
    for index in range(80):
        tensors += _layer_tensors(index, 8192, mixer, 28672, stored)
    return Model(
        name="llama-2-70b", family="llama", hidden=8192, vocab=vocab, max_positions=4096, dtype=BF16,
        layers=tuple(Layer(index=i, mixer=mixer, ffn=DenseFfn(intermediate=28672)) for i in range(80)),
        tensors=tuple(tensors),
        quantization=None if stored is BF16 else Quantization(method="test", weight_format=stored),
    )  # fmt: skip


def mixture() -> Model:
    """Mixtral-8x7B: 32 layers, 8 experts of 14336, two of them per token (arXiv:2401.04088)."""
    mixer = SoftmaxAttention(heads=32, kv_heads=8, k_dim=128, v_dim=128)
    ffn = ExpertFfn(experts=8, top_k=2, intermediate=14336)
    tensors = [
        Tensor(
            name="embedding",
            role="embedding",
            shape=(32000, 4096),
            format=BF16,
            part="embedding",
            shard="vocab",
            shard_units=32000,
        ),
        Tensor(
            name="head", role="head", shape=(32000, 4096), format=BF16, part="head", shard="vocab", shard_units=32000
        ),
    ]
    for index in range(32):
        tensors += [t for t in _layer_tensors(index, 4096, mixer, 1, BF16) if not t.role.startswith("ffn")]
        stacks: tuple[tuple[str, tuple[int, int, int], Shard], ...] = (
            ("gate", (8, 14336, 4096), "column"),
            ("up", (8, 14336, 4096), "column"),
            ("down", (8, 4096, 14336), "row"),
        )
        for name, shape, shard in stacks:
            tensors.append(
                Tensor(
                    name=f"{index}.experts.{name}",
                    role=f"experts.{name}",
                    shape=shape,
                    format=BF16,
                    layer=index,
                    shard=shard,
                    shard_units=14336,
                    experts=8,
                    quantizable=True,
                )
            )
        tensors.append(Tensor(name=f"{index}.router", role="router", shape=(8, 4096), format=BF16, layer=index))
    layers = tuple(Layer(index=i, mixer=mixer, ffn=ffn) for i in range(32))
    return replace(llama_70b(), name="mixtral", hidden=4096, layers=layers, tensors=tuple(tensors))
