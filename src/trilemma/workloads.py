"""For what: the load that a plan has to carry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from trilemma.errors import InputError, UnknownName
from trilemma.quantities import parse_count

#: What requests may ask of the sampler: the likeliest token; one of the likeliest, by top-k or top-p; that under penalties.
SAMPLING = ("greedy", "filtered", "penalized")


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """A serving load: prompt and output lengths in tokens, how many requests at once, and the latency wanted.

    ``isl`` and ``osl`` are the mean input and output lengths; ``concurrency`` requests run at once, or ``rate`` arrive a
    second (at most one of the two). ``context`` is the longest request that must be admitted (default: the model's own
    maximum). ``prefix_hit`` is the share of prompt tokens found in the prefix cache. ``ttft_ms`` and ``tpot_ms`` are targets.
    ``images`` come with each prompt, of ``image_size`` (width, height) pixels; ``image_tokens`` is what they are together of
    ``isl`` (`trilemma.models.image_tokens`).
    ``sampling`` is what requests ask of the sampler (`SAMPLING`).
    ``shapes_plan``: a plan that states no context admits the longest request; False where the plan stands as it is, the command
    of an engine.
    """

    isl: int | None = None
    osl: int | None = None
    concurrency: int | None = None
    rate: float | None = None
    context: int | None = None
    prefix_hit: float = 0.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    images: int | None = None
    image_size: tuple[int, int] | None = None
    image_tokens: int | None = None
    shapes_plan: bool = True
    sampling: str = "greedy"

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLING:
            raise UnknownName("sampling", self.sampling, SAMPLING)
        for name in ("isl", "osl", "concurrency", "context", "images"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 2**40:
                raise InputError(f"`{name}` {value} is out of range; give a whole number of at least 1")
        for name in ("rate", "ttft_ms", "tpot_ms"):
            value = getattr(self, name)
            if value is not None and not 1e-6 <= value < 1e12:
                raise InputError(f"`{name}` {value} is out of range; give a number from 0.000001 up")
        if not 0 <= self.prefix_hit < 1:
            raise InputError(
                f"`prefix_hit` {self.prefix_hit} is out of range; give a share from 0 up to, not including, 1"
            )
        if self.rate is not None and self.concurrency is not None:
            raise InputError("`rate` and `concurrency` both state the load; give one of them")
        if self.context is not None and (self.isl or 0) + (self.osl or 0) > self.context:
            raise InputError(
                f"`context` {self.context} is shorter than a request of {self.isl or 0} + {self.osl or 0} tokens; raise it, or"
                " give shorter lengths"
            )

    @property
    def longest_request(self) -> int | None:
        """Tokens of the longest request stated: ``context``, else prompt plus output; None unless both lengths are given."""
        if self.context is not None:
            return self.context
        if self.isl is not None and self.osl is not None:
            return self.isl + self.osl
        return None

    @property
    def least_request(self) -> int | None:
        """Tokens that the longest request has at least: as stated, else its prompt or its output alone, whichever is known."""
        return self.longest_request or self.isl or self.osl


#: How examples fill sequences: each is as long as a sequence; a sequence is the most that an example has, a batch as long as
#: its longest; or several examples share a sequence, which attention keeps apart.
Examples = Literal["full", "capped", "packed"]
#: Tokens of a short example of fine-tuning: lengths that nobody stated lie between it and the sequence.
SHORT_EXAMPLE = 512

#: What is trained: every weight, low-rank adapters on frozen weights, the same on quantised weights, or DoRA.
Method = Literal["full", "lora", "qlora", "dora"]
#: What QLoRA stores frozen weights in: NF4 with quantised scales (Dettmers et al. 2023, section 3).
QLORA_FORMAT = "nf4_double_quant"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingWorkload:
    """A training load: sequences of ``seq`` tokens, ``global_batch`` of them to an optimizer step.

    ``method`` says what is trained. Adapters have ``rank`` and stand on ``targets``: tensor roles or their first words
    ("attention", "ffn", "attention.q"); empty means every linear layer of the decoder. ``base_format`` is what frozen weights
    are stored in (None: the model's own format, NF4 with double quantisation for QLoRA), ``kept_format`` what a quantiser leaves
    as it was is turned into where weights are not sharded: embedding, head and norms (None: it stays). ``tokens`` is the
    length of the run.
    ``adapter`` names one of PEFT's methods (data/adapter_methods.toml) for what it keeps on its targets (None: LoRA or DoRA, as
    ``method`` says); it is timed as LoRA.
    ``filling`` is the share of a sequence that is not padding. ``examples`` says how examples fill sequences; ``document`` is the
    length of those that are packed (None: nobody stated it). ``trained_layers``: so many of the decoder's layers are trained at a
    time, and neither embedding nor head (None: everything is).
    """

    seq: int
    global_batch: int
    method: Method = "full"
    rank: int = 0
    targets: tuple[str, ...] = ()
    adapter: str | None = None
    base_format: str | None = None
    kept_format: str | None = None
    tokens: float | None = None
    filling: float = 1.0
    examples: Examples = "full"
    document: int | None = None
    trained_layers: int | None = None

    def __post_init__(self) -> None:
        if self.examples not in get_args(Examples):
            raise InputError(f"`examples` {self.examples!r} is not known; use {', '.join(get_args(Examples))}")
        if self.document is not None and not 0 < self.document <= self.seq:
            raise InputError(
                f"examples of {self.document} tokens in sequences of {self.seq} are out of range; give fewer"
            )
        if self.trained_layers is not None and not 0 < self.trained_layers <= 2**16:
            raise InputError(f"{self.trained_layers} trained layers is out of range; give a whole number such as 2")
        for name in ("seq", "global_batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 2**40:
                raise InputError(f"`{name}` {value} is out of range; give a whole number of at least 1")
        if self.method not in ("full", "lora", "qlora", "dora"):
            raise InputError(f"`method` {self.method!r} is not known; use full, lora, qlora or dora")
        if self.trains_adapters and not 0 < self.rank <= 2**16:
            raise InputError(f"`rank` {self.rank} is out of range; {self.method} needs a whole number such as 16")
        if self.tokens is not None and not 0 < self.tokens < 1e18:
            raise InputError(f"{self.tokens} tokens of training is out of range; give a number above 0")
        if not 0 < self.filling <= 1:
            raise InputError(f"a share {self.filling} of tokens that are not padding is out of range; give 0 to 1")

    @property
    def attended(self) -> int:
        """Tokens over which attention reaches. Packed examples of a length that nobody stated are taken as of any length between
        a short one and the sequence, each as likely (in logarithms): the middle."""
        return self.document or (self._document_at(0.5) if self.examples == "packed" else self.seq)

    def with_documents(self, quantile: float) -> TrainingWorkload:
        """The same with packed examples of the length that ``quantile`` of all lengths stay below; itself where it is known."""
        if self.examples != "packed" or self.document is not None:
            return self
        return replace(self, document=self._document_at(quantile))

    def _document_at(self, quantile: float) -> int:
        short = min(SHORT_EXAMPLE, self.seq)
        return round(float(short * (self.seq / short) ** quantile))

    @property
    def trains_adapters(self) -> bool:
        """Whether the model's own weights stay frozen."""
        return self.method != "full"

    @property
    def held_format(self) -> str | None:
        """What frozen weights are stored in where it is not the model's own format, under whichever adapters."""
        return self.base_format or (QLORA_FORMAT if self.method == "qlora" else None)


def parse_lengths(text: str) -> tuple[int, int]:
    """``4096/1024`` → (4096, 1024): prompt and output tokens. Raises `InputError`."""
    isl, slash, osl = text.partition("/")
    if not slash:
        raise InputError(f"`serve` {text[:80]!r} is not ISL/OSL, such as 4096/1024")
    return parse_count(isl, what="prompt length"), parse_count(osl, what="output length")
