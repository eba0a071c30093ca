"""What runs: layers by kind and every parameter tensor by role and shape. A model knows no hardware and no plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from trilemma.errors import InputError
from trilemma.formats.formats import Format
from trilemma.models.attention import Mixer

ModelPart = Literal["embedding", "layers", "head", "vision", "mtp"]
#: How tensor parallelism cuts a tensor: by output rows, by input columns, by vocabulary rows, or not at all.
Shard = Literal["column", "row", "vocab", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """One parameter tensor of one layer (the experts of a layer are one stacked tensor, experts first).

    ``name`` is as in the checkpoint; a stack carries the number of its first expert (``…experts.0.up_proj.weight``).

    ``shape`` is (…, out, in) as stored in a checkpoint. ``shard_units`` is the number of pieces that are never split along
    the cut axis (heads, KV heads, vocabulary rows, FFN columns): a rank holds ``ceil(units / tp) / units`` of the tensor, so
    eight KV heads over tp = 16 are held twice. ``experts`` > 0 marks a stack that expert parallelism can spread whole.
    ``part`` says where it lives: pipeline stages put "embedding" first, "head" (final norm and output matrix) last,
    "mtp" (multi-token-prediction layers) last and only when used.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    format: Format
    part: ModelPart = "layers"
    layer: int | None = None
    shard: Shard = "none"
    shard_units: int = 1
    experts: int = 0
    quantizable: bool = False

    @property
    def elements(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def bytes(self) -> int:
        return self.format.storage_bytes(self.shape)

    def stored_as(self, wanted: Format) -> Tensor:
        """This tensor in another format: written out, since a search stores hundreds of thousands anew."""
        if wanted is self.format or wanted == self.format:
            return self
        return Tensor(
            name=self.name, role=self.role, shape=self.shape, format=wanted, part=self.part, layer=self.layer,
            shard=self.shard, shard_units=self.shard_units, experts=self.experts, quantizable=self.quantizable,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseFfn:
    """One feed-forward block; ``gated`` (SwiGLU, GeGLU) has three matrices, else two."""

    intermediate: int
    gated: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertFfn:
    """A mixture of experts: ``top_k`` of ``experts`` per token, each of ``intermediate`` columns, plus a shared block.

    ``hidden`` is the width at which experts run where it differs from the model's (Nemotron-3 latent experts). ``groups``
    equal groups of experts compete for each token first, of which ``top_groups`` may be chosen from (group-limited routing,
    DeepSeek-V2, section 2.2.2; DeepSeek-V3, section 2.1.2).
    """

    experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    gated: bool = True
    hidden: int | None = None
    groups: int = 1
    top_groups: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.experts:
            raise InputError(
                f"{self.top_k} experts per token of {self.experts} experts cannot be; give from 1 to {self.experts}"
            )
        if self.experts % self.groups or not self.top_k * self.groups <= self.experts * self.top_groups:
            raise InputError(
                f"{self.top_groups} of {self.groups} groups of {self.experts} experts cannot give {self.top_k} experts per"
                " token; give equal groups, and as many as hold them"
            )
        if not 1 <= self.top_groups <= self.groups:
            raise InputError(
                f"{self.top_groups} of {self.groups} groups of experts cannot be; give from 1 to {self.groups}"
            )


Ffn: TypeAlias = DenseFfn | ExpertFfn


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One decoder layer; either half may be absent (Nemotron-H alternates mixers and feed-forwards as layers of their own)."""

    index: int
    mixer: Mixer | None
    ffn: Ffn | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """What a checkpoint says of its own weights: the method, what the linear layers are stored as, what is left alone.

    ``method``: gptq, awq, fp8, compressed-tensors, modelopt, bitsandbytes, mxfp4, gguf, exl3, …;
    ``kv_format`` is set where the checkpoint asks for a quantised cache. ``ignored`` are its module patterns, as written.
    """

    method: str
    weight_format: Format | None
    activation_bits: int | None = None
    kv_format: str | None = None
    ignored: tuple[str, ...] = ()
    #: Modules stored in another format than ``weight_format``: the format and the module patterns it holds for.
    layer_formats: tuple[tuple[Format, tuple[str, ...]], ...] = ()
    #: Only what ``layer_formats`` names is quantised.
    listed_only: bool = False
    #: What of the description was assumed or not understood, for the reader of an answer.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """Parameter counts from tensors. ``total`` is what the publisher counts: MTP layers and tied copies stay apart."""

    total: int
    active: int
    embedding: int
    vision: int = 0
    mtp: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Model:
    """A language model as its files describe it.

    ``dtype`` is the format of unquantised tensors. ``tensors`` hold every parameter once (a tied head is absent and
    ``tied_embeddings`` set). ``unknown_fields`` are configuration keys that may change memory and were not understood.
    ``source`` says where the facts come from; ``assumptions`` what was filled in, ``left_out``
    those of them that name parts of which no tensor is counted.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    max_positions: int | None
    layers: tuple[Layer, ...]
    mtp_layers: tuple[Layer, ...] = ()
    dtype: Format
    tied_embeddings: bool = False
    tensors: tuple[Tensor, ...]
    quantization: Quantization | None = None
    multimodal: bool = False
    vision: Mapping[str, int] = field(default_factory=dict)
    unknown_fields: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    source: str = ""

    def __repr__(self) -> str:
        return f"<Model {self.name[:80]}: {len(self.layers)} layers, {len(self.tensors)} tensors in {self.dtype.name}>"

    @property
    def quantized_by(self) -> str:
        """The method that quantised its checkpoint, "" where none did."""
        return "" if self.quantization is None else self.quantization.method

    def of_part(self, *parts: ModelPart) -> Iterable[Tensor]:
        return (tensor for tensor in self.tensors if tensor.part in parts)

    @property
    def mixers(self) -> Mapping[Mixer, int]:
        """Distinct mixers in order of first use, with how many decoder layers have each."""
        counts: dict[Mixer, int] = {}
        # layers share few objects, which count sooner than values compare
        mixers = [layer.mixer for layer in self.layers if layer.mixer is not None]
        objects = list(map(id, mixers))
        shared = Counter(objects)
        for one, mixer in dict(zip(objects, mixers, strict=True)).items():
            counts[mixer] = counts.get(mixer, 0) + shared[one]
        return counts

    @property
    def is_hybrid(self) -> bool:
        """Whether layers differ in what they keep per token, so that an engine must group caches."""
        return len(self.mixers) > 1
