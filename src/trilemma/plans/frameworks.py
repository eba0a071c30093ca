"""Training frameworks by what they can do: a data file each, ``data/frameworks/NAME.toml``; listing the folder finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from trilemma.data.digest import DATA
from trilemma.data.files import read_data
from trilemma.errors import InputError

if TYPE_CHECKING:
    from trilemma.hardware.accelerator import Accelerator
    from trilemma.plans.training import Attention, Loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """What a framework is searched with where nothing is settled.

    ``ladder`` says by what it recomputes: parts of a layer, single operators, whole layers. ``stages`` are those of ZeRO.
    ``narrow_recipes`` are for cards with FP8 and MXFP8 units; ``overlap`` None leaves it to the framework.
    """

    recipes: tuple[str, ...]
    stages: tuple[int, ...]
    ladder: Literal["parts", "operators", "layers"] = "layers"
    narrow_recipes: tuple[str, ...] = ()
    optimizer: str = "adamw-like-weights"
    attention: Attention = "sdpa"
    compiled: bool = False
    loss: Loss = "full"
    overlap: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkTraits:
    """What one framework is called and can do.

    ``programs`` are the consecutive words that start it, the first by its file name. ``reader`` and ``writer`` are
    packages under ``engines/`` that read its commands and write its files; None: none does.
    It is ``default_for`` full training or adapters.
    ``cuts``: it cuts the model into pipeline stages and experts, others run replicas, sharded or not. ``plain_recipe`` is the
    number format of its simplest plan (None: the one at hand), ``usual_recipe`` that of tables that state none, whose optimizer
    is sharded (ZeRO-1) where ``shards_optimizer``.
    """

    name: str
    label: str
    listed: int
    vendors: tuple[str, ...]
    vendors_source: str
    habits: Habits
    habits_of_adapters: Habits
    habits_of_quantised: Habits
    aliases: tuple[str, ...] = ()
    programs: tuple[tuple[str, ...], ...] = ()
    reader: str | None = None
    writer: str | None = None
    default_for: tuple[str, ...] = ()
    cuts: bool = False
    shards_beside_pipeline: bool = True
    equal_stages: bool = False
    offloads_weights: bool = True
    #: Its exported command has multi-token-prediction layers.
    trains_mtp: bool = False
    transformer_engine: bool = False
    shards_optimizer: bool = False
    local_batch_over_stages: bool = False
    plain_recipe: str | None = None
    #: What embedding, head and norms of a model that bitsandbytes quantised are turned into (None: they stay).
    kept_beside_quantised: str | None = None
    usual_recipe: str = "bf16"
    pure_where_bf16: bool = False
    #: Families whose model code runs every expert over every token.
    every_expert_of: tuple[str, ...] = ()


@cache
def every() -> Mapping[str, FrameworkTraits]:
    """Name → traits of every framework, in the order in which they are named."""
    found = [_traits(path.stem) for path in (DATA / "frameworks").glob("*.toml")]
    return {one.name: one for one in sorted(found, key=lambda one: one.listed)}


def runs_every_expert(name: str, family: str) -> bool:
    """Whether the model code of a framework runs every expert of this family over every token."""
    one = every().get(name)
    return one is not None and family in one.every_expert_of


def _traits(stem: str) -> FrameworkTraits:
    document = read_data(f"frameworks/{stem}.toml")
    own = Habits(**_frozen(document["habits"]))
    of_adapters = Habits(**_frozen(document["habits_of_adapters"])) if "habits_of_adapters" in document else own
    quantised = Habits(**_frozen(document["habits_of_quantised"])) if "habits_of_quantised" in document else of_adapters
    return FrameworkTraits(
        name=stem,
        habits=own,
        habits_of_adapters=of_adapters,
        habits_of_quantised=quantised,
        **_frozen(document["traits"]),
    )


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuple(value) if isinstance(value, list) else value for name, value in table.items()}


def _tuple(values: list[Any]) -> tuple[Any, ...]:
    return tuple(_tuple(value) if isinstance(value, list) else value for value in values)


def those(trait: str) -> tuple[str, ...]:
    """The names of the frameworks that have ``trait``."""
    return tuple(name for name, one in every().items() if getattr(one, trait))


def written_for(name: str) -> str:
    """The framework whose files run a plan of ``name``: itself, or one that writes as it, "" where none does."""
    writers = those("writer")
    return next((one for one in (name, *writers) if one in writers and name in (one, every()[one].writer)), "")


@cache
def names() -> Mapping[str, str]:
    """Every name and other name of the frameworks → the framework."""
    return {word: one.name for one in every().values() for word in (one.name, *one.aliases)}


def default_for(what: Literal["full", "adapters"]) -> str:
    """The framework that is meant where none is named."""
    return next(one.name for one in every().values() if what in one.default_for)


def check_vendor(name: str, accelerator: Accelerator) -> None:
    """Raise `InputError` where the framework does not train on cards of this maker."""
    one = every()[name]
    if accelerator.vendor not in one.vendors:
        raise InputError(f"{one.label} does not train on {accelerator.name}; use a card of {', '.join(one.vendors)}")
