"""What rooms above ask of an engine without knowing its name: the table ``[traits]`` of its data file, one value each.

An engine is the package ``engines/STEM`` beside the data file ``data/engines/STEM.toml``; listing the folder finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from trilemma.data.digest import DATA
from trilemma.data.files import read_table
from trilemma.errors import InputError

if TYPE_CHECKING:
    from trilemma.hardware.accelerator import Accelerator
    from trilemma.models.architecture import Model

#: Tables of flags and keys stand beside the data files of engines.
_TABLES = ("_flags", "_keys")


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """The engine's own load generator: its command with ``{model}``, ``{isl}`` … in it, and the file that it writes."""

    command: str
    results: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineTraits:
    """What one engine is called and can do.

    ``label`` is its name as its makers write it, ``package`` its package under ``engines/``, ``listed`` its place where engines
    are named in a row. ``programs`` start it (consecutive words), ``images`` are patterns of repositories whose entry point is
    its server. ``splits`` says what it cuts a model by: everything that a layout names, layers or rows of matrices, layers
    alone. ``narrow_cache`` is the format of a cache below 16 bits, "" where its command takes none. ``attends_alone_by`` is
    the switch by which replicas of a mixture share experts; None: they always do. ``vendors`` are the makers of the cards
    it runs on; None: its other facts say so.
    ``capability_from`` is the least compute capability of NVIDIA's cards that it is built for.
    """

    name: str
    label: str
    package: str
    listed: int
    aliases: tuple[str, ...] = ()
    programs: tuple[tuple[str, ...], ...] = ()
    #: Those of ``programs`` that start a server which other commands tell its models.
    programs_without_model: tuple[tuple[str, ...], ...] = ()
    images: tuple[str, ...] = ()
    deploys: bool = False
    disaggregates: bool = False
    quantises_on_load: bool = False
    reads_logs: bool = False
    weights: Literal["checkpoint", "gguf"] = "checkpoint"
    #: The mix in which it fetches a model of which no other is named.
    usual_mix: str = ""
    splits: Literal["all", "layers or rows", "layers"] = "all"
    mixed_cards: bool = False
    #: The engine that it starts and whose rules it uses, by its registered name.
    built_on: str | None = None
    #: It spreads a model over all the cards that it sees, unless told of fewer.
    takes_every_card: bool = False
    #: Options that put every layer on the cards, where its command has them.
    all_on_cards: Mapping[str, str] = field(default_factory=dict)
    #: The cache is cut into a part for each request answered at once.
    cache_in_slots: bool = False
    #: It serves one reader unless told of more.
    one_reader: bool = False
    #: The cache of the whole context is allocated at start.
    allocates_context: bool = False
    #: It starts with a cache below the context asked for and refuses longer requests.
    starts_below_context: bool = False
    #: It starts with a context longer than the model's positions and cuts requests there; else by a variable of the environment.
    longer_contexts: bool = False
    longer_contexts_by: str = ""
    #: A request is admitted only when its whole length fits, and at most so many are where tables load it to the limit.
    admits_whole: bool = False
    most_sequences: int = 1024
    column_words: tuple[str, ...] = ()
    dated_by_issues: bool = False
    #: Words of ``--kv-cache-dtype`` by format, for checkpoints whose cache format is part of a precision plan.
    cache_words: Mapping[str, str] = field(default_factory=dict)
    narrow_cache: str = "fp8"
    attends_alone_by: str | None = None
    #: Its limit of sequences counts those of all replicas that attend alone.
    limit_of_all_replicas: bool = False
    vendors: tuple[str, ...] | None = None
    vendors_source: str = ""
    capability_from: float = 0.0
    capability_source: str = ""
    #: Releases ``before`` which what its makers distribute holds kernels ``capability_through`` a compute capability alone.
    built_through: tuple[Mapping[str, Any], ...] = ()
    benchmark: Benchmark | None = None
    #: It runs encoders (BERT and its kin), whose layers keep nothing.
    encodes: bool = False
    #: Options with which its server answers with vectors or scores and generates nothing: flag → values.
    pooling_flags: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    #: "embed" and "rank" → the switch without which its server does not do so with a model made for it.
    pooling_asked: Mapping[str, str] = field(default_factory=dict)
    #: From which version its command takes a document to embed behind the model, and nothing else; "" where it has none.
    embeds_documents_from: str = ""
    #: Flag of how experts get their tokens → values under which all ranks get all tokens, as they do without it; any other value
    #: sends them to the ranks of their experts alone.
    gathers_tokens: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Least compute capability at which it runs bfloat16; below it "auto" means float16, and a stated bfloat16 is refused or
    #: float16 too.
    bfloat16_from: float | None = None
    bfloat16_below: Literal["refused", "float16"] = "float16"
    bfloat16_source: str = ""
    #: Flags by which it serves adapters: ``on``, ``slots`` in a batch, ``rank`` of the largest. None: no rules of it are known.
    adapter_flags: Mapping[str, str] = field(default_factory=dict)
    #: Ways in which checkpoints are published quantised (``quant_method``) that it does not load, and what to take instead.
    unloaded_methods: tuple[str, ...] = ()
    unloaded_instead: str = ""
    unloaded_source: str = ""
    #: Ways of which no checkpoint at all is loaded, made for it or not; ``unloaded_instead`` holds for them too.
    never_loaded: tuple[str, ...] = ()

    @property
    def in_turn(self) -> bool:
        """Whether cards hold layers in turn, with one copy of the model in a process."""
        return self.splits != "all"

    def loads_none(self, method: str) -> str:
        """Why checkpoints quantised by ``method`` are none of its, and what is."""
        return f"{self.label} does not load checkpoints quantised by {method}; take {self.unloaded_instead}"

    def routes_tokens(self, extra: Mapping[str, Any]) -> bool:
        """Whether options ``extra`` of an engine send tokens to the ranks of their experts alone."""
        return any(extra.get(flag) not in (None, *values) for flag, values in self.gathers_tokens.items())


@cache
def every() -> Mapping[str, EngineTraits]:
    """Registered name → traits of every engine, in the order in which they are named."""
    stems = (path.stem for path in sorted((DATA / "engines").glob("*.toml")) if not path.stem.endswith(_TABLES))
    found = [(stem, table) for stem in stems if (table := read_table(f"engines/{stem}.toml", "traits"))]
    engines = sorted((_traits(stem, table) for stem, table in found), key=lambda one: one.listed)
    return {one.name: one for one in engines}


def _traits(stem: str, table: Mapping[str, Any]) -> EngineTraits:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    for name in ("programs", "programs_without_model"):
        fields[name] = tuple(tuple(words) for words in table.get(name, ()))
    if "benchmark" in table:
        fields["benchmark"] = Benchmark(**table["benchmark"])
    return EngineTraits(package=stem, **fields)


def those(trait: str) -> tuple[str, ...]:
    """The names of the engines that have ``trait``."""
    return tuple(name for name, one in every().items() if getattr(one, trait))


@cache
def aliases() -> Mapping[str, str]:
    """Other name → registered name."""
    return {alias: one.name for one in every().values() for alias in one.aliases}


def check_encodes(traits: EngineTraits, model: Model) -> None:
    """Raise `InputError` for an encoder where no rules of the engine for encoders are known."""
    if not traits.encodes and any(mixer.generates_nothing for mixer in model.mixers):
        raise InputError(
            f"{model.name} is an encoder, and no rules of {traits.label} for encoders are known here; use `engine`"
            f" {' or '.join(those('encodes'))}"
        )


def check_vendor(traits: EngineTraits, accelerator: Accelerator) -> None:
    """Raise `InputError` where no rules of the engine on cards of this maker are known."""
    if traits.vendors is not None and accelerator.vendor not in traits.vendors:
        from trilemma.engines.cards import unknown_there

        raise unknown_there(traits.name, accelerator, traits.vendors)
    if (accelerator.compute_capability or traits.capability_from) < traits.capability_from:
        from trilemma.engines.cards import too_old

        raise too_old(traits, accelerator)
