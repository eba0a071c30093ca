"""What one training pass multiplies and moves: a model's tensors summed into a small table of work, once per model.

Differs from serving in what is counted: every token meets the output matrix, multi-token-prediction layers train too, and
elementwise traffic (norms, residuals, rotary embedding, activations, expert permutation) is a visible share of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import DenseFfn, ExpertFfn, Layer, Model, Tensor
from trilemma.models.attention import Mixer
from trilemma.models.identity import ByIdentity
from trilemma.plans.frameworks import runs_every_expert
from trilemma.plans.recipes import frozen_as
from trilemma.timing.operators import ExpertProducts, Products, expert_products_of, products_of

#: First words of the roles of matrices that low-precision training leaves in 16 bits beside embedding and output matrix.
_SIXTEEN_BIT_ROLES = ("router", "norm", "bias", "table", "hyper")
#: Kernels of one forward pass of a feed-forward beside its matrix products; measured launch times multiply this count.
_DENSE_FFN_KERNELS = 5
_EXPERT_FFN_KERNELS = 18


@dataclass(frozen=True, kw_only=True, slots=True)
class Pointwise:
    """Elements that elementwise kernels read and write per token in one forward pass, summed over layers.

    ``stream`` is the residual stream (norms, residual sums: cut by sequence parallelism), ``inner`` what tensor parallelism
    cuts (rotary embedding, activations, convolutions), ``routed`` what only experts see (permutation, activations).
    """

    stream: float
    inner: float
    routed: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingWork:
    """A model ready for training time; ``layers`` count ``mtp_layers`` too. ``linears`` may run in low precision, ``plain`` and
    ``head`` stay in 16 bits.

    ``mixers`` counts layers by mixer. ``joins`` counts places where tensor parallelism joins partial sums in a forward pass
    (after each mixer, dense and shared feed-forward); ``expert_joins`` the mixtures, which join too when ``tp`` cuts their
    experts. ``heads`` is how often logits are made of each token (one more for each MTP module).
    """

    hidden: int
    vocab: int
    layers: int
    mtp_layers: int
    linears: tuple[Products, ...]
    feed_forward: tuple[Products, ...]
    plain: tuple[Products, ...]
    head: tuple[Products, ...]
    embedding_elements: int
    head_elements: int
    tied: bool
    heads: int
    experts: tuple[ExpertProducts, ...]
    mixers: tuple[tuple[Mixer, int], ...]
    joins: int
    expert_joins: int
    kernels: int
    pointwise: Pointwise
    exchanged: float
    kv_width: float
    #: FLOPs of one Newton-Schulz step over all matrices: (dense, routed experts).
    newton_schulz: tuple[float, float]
    #: Bytes of one weight of the decoder as the checkpoint holds it.
    stored_bytes: float
    #: Groups of experts of the router, and of how many of them a token may take experts (`ExpertFfn`).
    router_groups: tuple[int, int] = (1, 1)

    @property
    def is_mixture(self) -> bool:
        return bool(self.experts)

    @property
    def dense_elements(self) -> int:
        """Weights of decoder layers beside routed experts."""
        return sum(product.elements for product in (*self.linears, *self.feed_forward, *self.plain))

    @property
    def expert_elements(self) -> int:
        return sum(expert.elements * expert.layers for expert in self.experts)

    @property
    def active_elements(self) -> float:
        """Weights that multiply one token, the output matrix once per logit row, the embedding look-up never."""
        routed = sum(e.layers * e.elements * min(e.top_k / e.experts, 1.0) for e in self.experts)
        return self.dense_elements + routed + self.heads * self.head_elements


def training_work(model: Model, *, mtp: bool = True) -> TrainingWork:
    """Sum ``model`` for training; with ``mtp`` its multi-token-prediction layers train as further layers."""
    return _training_work(ByIdentity(model), mtp and bool(model.mtp_layers))


def run_work(model: Model, *, implementation: str, mtp: bool = True) -> TrainingWork:
    """`training_work` as a framework runs it: where its model code runs every expert over every token, they are products like
    others. Source: ``every_expert_of`` in data/frameworks.
    """
    work = training_work(model, mtp=mtp)
    if not work.experts or not runs_every_expert(implementation, model.family):
        return work
    more = max(one.experts / one.top_k for one in work.experts)
    pointwise = replace(work.pointwise, routed=work.pointwise.routed * more)
    plain = tuple(
        Products(
            computed_in=one.computed_in, bits=one.bits, shard="column", units=max(one.outputs, 1),
            elements=one.layers * one.elements, bytes=one.layers * one.bytes,
            inputs=one.layers * one.experts * one.inputs, outputs=one.layers * one.experts * one.outputs,
        )
        for one in work.experts
    )  # fmt: skip
    return replace(work, experts=(), feed_forward=(*work.feed_forward, *plain), pointwise=pointwise)


@lru_cache(maxsize=64)
def _training_work(same: ByIdentity, mtp: bool) -> TrainingWork:
    model = same.value
    assert isinstance(model, Model)
    layers = [*model.layers, *(model.mtp_layers if mtp else ())]
    mixers = [layer.mixer for layer in layers if layer.mixer is not None]
    experts = [layer.ffn for layer in layers if isinstance(layer.ffn, ExpertFfn)]
    tensors = [t for t in model.of_part(*(("layers", "mtp") if mtp else ("layers",))) if len(t.shape) >= 2]
    units = _SixteenBits()
    dense, routed = _parted(tensors, lambda tensor: bool(tensor.experts))
    low, sixteen = _parted(dense, _stays_sixteen_bit)
    linears, feed_forward = _parted(low, lambda tensor: tensor.role.startswith("ffn"))
    head = [tensor for tensor in model.of_part("head") if len(tensor.shape) >= 2]
    embedding = [tensor for tensor in model.of_part("embedding") if len(tensor.shape) == 2]
    tied = model.tied_embeddings or not head
    products = products_of(embedding[:1] if tied else head, units)
    return TrainingWork(
        hidden=model.hidden,
        vocab=model.vocab,
        layers=len(layers),
        mtp_layers=len(layers) - len(model.layers),
        linears=products_of(linears, units),
        feed_forward=products_of(feed_forward, units),
        plain=products_of(sixteen, units),
        head=products,
        embedding_elements=sum(tensor.elements for tensor in embedding),
        head_elements=sum(product.elements for product in products),
        tied=tied,
        heads=1 + (sum(tensor.role == "mtp.projection" for tensor in tensors) if mtp else 0),
        experts=expert_products_of(routed, {layer.index: layer for layer in layers}, units),
        mixers=_counted(mixers),
        joins=len(mixers) + sum(map(_joins, layers)),
        expert_joins=len(experts),
        kernels=sum(map(_kernels, layers)),
        pointwise=_pointwise(layers, model.hidden),
        exchanged=sum(ffn.top_k * (ffn.hidden or model.hidden) for ffn in experts),
        kv_width=sum(mixer.exchanged_width for mixer in mixers),
        newton_schulz=(_newton_schulz(dense), _newton_schulz(routed)),
        stored_bytes=_bytes_each(tensors, model.quantized_by),
        router_groups=(experts[0].groups, experts[0].top_groups) if experts else (1, 1),
    )


def _parted(tensors: Iterable[Tensor], is_second: Callable[[Tensor], bool]) -> tuple[list[Tensor], list[Tensor]]:
    """(tensors that are not, tensors that are), each in order."""
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for tensor in tensors:
        parts[is_second(tensor)].append(tensor)
    return parts


def _newton_schulz(tensors: Iterable[Tensor]) -> float:
    """FLOPs of one step ``X ← aX + (bA + cA²)X``, ``A = XXᵀ``, of every matrix m × n with m ≤ n: ``4m²n + 2m³`` (Jordan et
    al. 2024, three products)."""
    total = 0.0
    for tensor in tensors:
        if tensor.quantizable:
            small, large = sorted(tensor.shape[-2:])
            total += tensor.elements / (small * large) * (4.0 * small**2 * large + 2.0 * small**3)
    return total


def _bytes_each(tensors: list[Tensor], method: str) -> float:
    """Bytes of one frozen weight, on average: as the checkpoint holds it, or expanded."""
    total = 0.0
    for tensor in tensors:
        name = frozen_as(tensor.format.name, method)
        total += tensor.bytes if name == tensor.format.name else catalogue.get(name).storage_bytes(tensor.shape)
    return total / max(sum(tensor.elements for tensor in tensors), 1)


class _SixteenBits:
    """Training multiplies what a checkpoint stores in any format at 16 bits, unless the recipe says otherwise."""

    def of(self, _stored: Format) -> str:
        return "bf16"

    def bytes(self, tensor: Tensor) -> int:
        return tensor.elements * int(catalogue.get("bf16").bits) // 8


def _stays_sixteen_bit(tensor: Tensor) -> bool:
    return tensor.role.startswith(_SIXTEEN_BIT_ROLES) or tensor.role.endswith((".conv", ".state"))


def _counted(mixers: Iterable[Mixer]) -> tuple[tuple[Mixer, int], ...]:
    counts: dict[Mixer, int] = {}
    for mixer in mixers:
        counts[mixer] = counts.get(mixer, 0) + 1
    return tuple(counts.items())


def _joins(layer: Layer) -> bool:
    return isinstance(layer.ffn, DenseFfn) or (isinstance(layer.ffn, ExpertFfn) and layer.ffn.shared_intermediate > 0)


def _kernels(layer: Layer) -> int:
    mixer = 0 if layer.mixer is None else layer.mixer.training_kernels
    ffn = 0 if layer.ffn is None else _EXPERT_FFN_KERNELS if isinstance(layer.ffn, ExpertFfn) else _DENSE_FFN_KERNELS
    return mixer + ffn


def _pointwise(layers: Iterable[Layer], hidden: int) -> Pointwise:
    """Each half of a layer normalises (read, write) and adds to the residual (two reads, a write): five widths."""
    stream = inner = routed = 0.0
    for layer in layers:
        stream += 5.0 * hidden * ((layer.mixer is not None) + (layer.ffn is not None))
        inner += 0.0 if layer.mixer is None else layer.mixer.pointwise_width
        match layer.ffn:
            case DenseFfn():
                inner += (3.0 if layer.ffn.gated else 2.0) * layer.ffn.intermediate
            case ExpertFfn():
                ffn = layer.ffn
                each = (3.0 if ffn.gated else 2.0) * ffn.intermediate + 4.0 * (ffn.hidden or hidden)
                routed += ffn.top_k * each
                inner += (3.0 if ffn.gated else 2.0) * ffn.shared_intermediate
    return Pointwise(stream=stream, inner=inner, routed=routed)
