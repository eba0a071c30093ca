"""Weights and caches in the formats that a search tries: as published, narrower where the cards can run it, or as named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from trilemma.engines import traits_of
from trilemma.engines.loading import as_published_for
from trilemma.errors import UnknownName
from trilemma.formats import catalogue as formats
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.models.catalogue import hub_id, served_id
from trilemma.models.identity import ByIdentity
from trilemma.models.parameters import weight_bytes
from trilemma.models.published import published_as
from trilemma.models.quantized import find_scheme, requantize
from trilemma.plans import Plan, Pool
from trilemma.question import Question, ServingQuestion
from trilemma.search.quality import weight_quality
from trilemma.timing.serving_terms import ServingTerms
from trilemma.versions import DEFAULT_ENGINE
from trilemma.workloads import Serving

#: Bytes of a narrower scheme against those as published; above it a conversion buys nothing.
_CLEARLY_FEWER = 0.9
#: The word for the weights as their publisher stores them.
AS_PUBLISHED = "as published"
#: GGUF mixes that are tried, widest first, and slots of an engine that serves them.
_GGUF_MIXES = ("q8_0", "q6_k", "q5_k_m", "q4_k_m")
_AS_PUBLISHED_WORDS = {"as-is", "asis", "as_is", "published", "auto", AS_PUBLISHED}


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightPrecision:
    """How weights may be stored: ``on_load`` is the engine's own quantisation of the published checkpoint while loading,
    ``checkpoint`` says which checkpoint the plan needs."""

    name: str
    model: Model
    on_load: str | None = None
    checkpoint: str = AS_PUBLISHED
    quality: str = "unchanged"
    #: The model asked for, where the checkpoint is another one that is published.
    instead_of: str | None = None
    #: The engine's word for the format that unquantised weights are loaded in, where it is not the checkpoint's own.
    dtype: str | None = None
    #: Whether the checkpoint is a file of the language model alone, its vision tower in another that the command does not name.
    text_only: bool = False

    @property
    def served_as(self) -> str:
        """What to name on the engine's command line: the hub id, or a folder or GGUF file that has to be made."""
        published = served_id(self.model.name)
        if self.checkpoint == AS_PUBLISHED:
            return published
        name, quantization = published.rpartition("/")[2], self.model.quantization
        if quantization is not None and quantization.method == "gguf":
            return f"./{name}-{self.name.removeprefix('gguf-').upper()}.gguf"
        return f"./{name}-{self.name}"

    def asked(
        self,
        *,
        cluster: Cluster,
        workload: Serving,
        plan: Plan,
        free_bytes: float | None = None,
        terms: ServingTerms | None = None,
    ) -> ServingQuestion:
        """The question of one plan with weights so stored."""
        if self.dtype is not None or self.text_only:
            plan = replace(plan, pools=tuple(self._loaded(pool) for pool in plan.pools))
        scheme, checkpoint = (None, None) if self.checkpoint == AS_PUBLISHED else (self.name, self.checkpoint)
        return Question(
            model=self.model, cluster=cluster, workload=workload, plan=plan, free_bytes=free_bytes,
            served_as=self.served_as, scheme=scheme, checkpoint=checkpoint, terms=terms,
        )  # fmt: skip

    def _loaded(self, pool: Pool) -> Pool:
        options = pool.options
        return replace(
            pool,
            options=replace(options, dtype=options.dtype or self.dtype, text_only=options.text_only or self.text_only),
        )


def precisions(
    model: Model, accelerator: Accelerator, wanted: Sequence[str] | None, *, engine: str = DEFAULT_ENGINE
) -> list[WeightPrecision]:
    """The ways to store ``model``'s weights on ``accelerator``: those ``wanted``, else as published and every narrower
    scheme that the card and the ``engine`` run.

    A checkpoint that is published in a scheme stands for it. vLLM and SGLang also quantise 16-bit checkpoints to FP8 while
    loading, which they do where FP8 is ``wanted``; where nothing is published a checkpoint has to be converted.
    llama.cpp loads GGUF files.
    """
    own, model = model, as_published_for(model, engine)
    if wanted:
        return [_precision(model, name, engine) for name in wanted]
    published = weight_bytes(model)
    names = _gguf_mixes(own) if traits_of(engine).weights == "gguf" else _narrower(model, accelerator)
    narrower = [_published(model, name, engine) or _precision(model, name, engine) for name in names]
    return [
        _precision(model, AS_PUBLISHED, engine),
        *(one for one in narrower if weight_bytes(one.model) < _CLEARLY_FEWER * published),
    ]


def kv_dtypes(
    model: Model, accelerator: Accelerator, wanted: Sequence[str] | None, *, engine: str = DEFAULT_ENGINE
) -> list[str]:
    """Cache formats to try: the checkpoint's own, and the engine's narrower one: FP8 where the card has it and the checkpoint
    does not already, or blocks of a format that any card reads."""
    if wanted:
        return list(wanted)
    asks = model.quantization.kv_format if model.quantization is not None else None
    keeps_tokens = any(not mixer.keeps_state for mixer in model.mixers)
    narrow = traits_of(engine).narrow_cache
    if not narrow:
        return ["auto"]
    of_card = narrow == "fp8"
    if of_card and ((asks or "").startswith(narrow) or narrow not in accelerator.hardware_formats):
        return ["auto"]
    return ["auto", narrow] if keeps_tokens else ["auto"]


def _gguf_mixes(model: Model) -> list[str]:
    """Mixes that a GGUF of ``model`` is usually made in; none where its publisher quantised it to less."""
    own = model.quantization
    bits = own.weight_format.bits if own is not None and own.weight_format is not None else model.dtype.bits
    return list(_GGUF_MIXES) if bits >= 8 else []


def _published(model: Model, name: str, engine: str) -> WeightPrecision | None:
    """Weights in the scheme ``name`` from a checkpoint that somebody published so; None where none is known."""
    if traits_of(engine).weights == "gguf":
        return None
    stored = published_as(model, name)
    if stored is None:
        return None
    return WeightPrecision(
        name=find_scheme(name).name, model=stored, quality=weight_quality(name), instead_of=model.name
    )


def _precision(model: Model, name: str, engine: str) -> WeightPrecision:
    return _kept(ByIdentity(model), name, engine)


@lru_cache(maxsize=32)
def _kept(same: ByIdentity, name: str, engine: str) -> WeightPrecision:
    """Kept, since one model is asked about on several numbers of cards, and every tensor of it is stored anew."""
    model = same.value
    assert isinstance(model, Model)
    found, traits = _stored(model, name, engine), traits_of(engine)
    if found.checkpoint != AS_PUBLISHED:
        found = _published(model, name, engine) or found
    # convert_hf_to_gguf.py writes the language model; a repository of GGUF files has its tower beside it
    converted = traits.weights == "gguf" and "gguf" not in hub_id(model.name).lower()
    return replace(found, text_only=converted and model.multimodal)


def _stored(model: Model, name: str, engine: str) -> WeightPrecision:
    if name.strip().lower() in _AS_PUBLISHED_WORDS:
        return WeightPrecision(name=AS_PUBLISHED, model=model)
    scheme = find_scheme(name)
    own = model.quantization
    if own is None and not scheme.quantises and scheme.format.name != model.dtype.name and _names_a_format(name):
        return WeightPrecision(name=scheme.name, model=requantize(model, name), dtype=scheme.format.aliases[0])
    if (own is None and not scheme.quantises) or (own is not None and own.weight_format == scheme.format):
        return WeightPrecision(name=AS_PUBLISHED, model=model)
    quantised = own is None and scheme.name == "fp8" and traits_of(engine).quantises_on_load
    on_load = "fp8" if quantised else None
    return WeightPrecision(
        name=scheme.name,
        model=requantize(model, name),
        on_load=on_load,
        checkpoint=AS_PUBLISHED if on_load else f"a checkpoint converted to {scheme.name}",
        dtype=scheme.format.aliases[0] if not scheme.quantises and scheme.format.name != model.dtype.name else None,
        quality=weight_quality(name) if scheme.quantises else "unchanged",
    )


def _names_a_format(name: str) -> bool:
    """Whether ``name`` is that of a number format, and not a word for weights as they are ("none", "16bit")."""
    try:
        formats.get(name)
    except UnknownName:
        return False
    return True


def _narrower(model: Model, accelerator: Accelerator) -> list[str]:
    """Schemes that store fewer bits than the checkpoint does and that the card runs, widest first."""
    units = set(accelerator.hardware_formats)
    nvidia = (accelerator.compute_capability or 0.0) >= 7.5
    own = model.quantization
    bits = own.weight_format.bits if own is not None and own.weight_format is not None else model.dtype.bits
    names: list[str] = []
    if bits >= 16:
        names += ["fp8"] if "fp8" in units else ["w8a8"] if "int8" in units and nvidia else []
    if bits >= 8:
        if "nvfp4" in units:
            names.append("nvfp4")
        elif "mxfp4" in units:
            names.append("mxfp4")
        if not units & {"nvfp4", "mxfp4"} or bits >= 16:
            names += ["awq"] if nvidia or accelerator.vendor.lower().startswith("amd") else []
    return names
