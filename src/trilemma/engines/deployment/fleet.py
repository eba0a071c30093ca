"""Engines of a plan as processes: how many of each, on how many GPUs and nodes, with which words, behind which router."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trilemma.errors import InputError, shorten
from trilemma.foreign_words import written
from trilemma.plans import Plan, Pool

#: In words of a `NodeSpan`: the address of node 0, the node's own number, and that number times the ranks of a node.
LEADER, RANK, FIRST_RANK = "{leader}", "{rank}", "{first}"
#: Who starts the program in a container: the manifest, the image's entry point handed it, or the entry point itself.
ContainerEntry = Literal["command", "args", "image"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpan:
    """One engine over several ``nodes``: words that node 0 adds, words that the others add; none of them come from outside.

    ``ranks`` are the data-parallel ranks of a node. With ``ray_port`` the others run no engine but join node 0's Ray.
    """

    nodes: int
    leader: tuple[str, ...]
    worker: tuple[str, ...] = ()
    ranks: int = 1
    ray_port: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """The port beside the engine's own at which pools find each other: told by ``variable`` or ``flag``.

    Engines of one host need ``step`` ports each, from ``first`` on. ``host_variable`` holds the address given to others.
    """

    first: int
    step: int = 1
    variable: str | None = None
    flag: str | None = None
    host_variable: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineGroup:
    """``replicas`` engines of one layout. ``program`` and ``arguments`` are the command; ``files`` are those it names.

    ``before`` and ``after`` are lines of a shell around it, for programs that are told their model by a client.
    """

    role: str
    replicas: int
    gpus: int
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    entry: ContainerEntry
    files: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[tuple[str, str], ...] = ()
    nodes: int = 1
    span: NodeSpan | None = None
    side: Side | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = (value for pair in self.environment for value in pair)
        written((*self.program, *self.arguments, *self.files, *values), what="the word")

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """One engine as a router sees it."""

    role: str
    host: str
    port: int
    side: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A router's command and the files that it names."""

    words: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Router:
    """What stands before the engines. ``route`` writes its command for the engines and the port on which it listens.

    ``package`` installs it; ``by_file`` says that it reads the engines' addresses from a file.
    """

    route: Callable[[Sequence[End], int], Route]
    image: str | None
    package: str | None = None
    entry: ContainerEntry = "command"
    by_file: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """All engines of one plan. ``label`` is engine and release, ``beside`` files that say the same in the engine's own form.

    ``model`` is the name by which clients ask (``asked_as`` where that is another), ``weights`` what the commands load (a hub id
    or a path).
    """

    engine: str
    label: str
    model: str
    weights: str
    maker: str
    image: str | None
    port: int
    health: str
    groups: tuple[EngineGroup, ...]
    per_node: int | None = None
    router: Router | None = None
    beside: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Why no Kubernetes objects are written for this plan, where none are.
    unmanaged: str | None = None
    #: Words that let a router read an engine's load from it; None where llm-d's cannot.
    metrics: tuple[str, ...] | None = None
    asked_as: str | None = None

    def __post_init__(self) -> None:
        written((self.label, self.model, self.weights, self.image or "", *self.notes), what="the name")

    @property
    def apart(self) -> bool:
        """Whether prompts and answers run on engines of their own."""
        return len(self.groups) > 1

    @property
    def on_this_machine(self) -> bool:
        """Whether the weights are named by a path that holds only here."""
        return self.weights.startswith((".", "~"))

    @property
    def single(self) -> EngineGroup | None:
        """The one engine of a plan that is one process on one node."""
        group = self.groups[0]
        return group if not self.apart and group.replicas == 1 and group.nodes == 1 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetAsked:
    """What is to be written: ``plan`` for ``model``, on cards of ``maker``.

    ``version`` is used where the plan names none; a node holds ``per_node`` cards (None: any number). ``latent`` says whether the
    model's attention is, None where the model is not known.
    """

    model: str
    plan: Plan
    version: str | None
    maker: str
    per_node: int | None
    latent: bool | None = None

    def fleet(
        self,
        *,
        engine: str,
        own: Mapping[str, Any],
        groups: tuple[EngineGroup, ...],
        weights: str | None = None,
        **more: Any,
    ) -> Fleet:
        """The engines of ``groups``; ``own`` are the port and the health check of an engine."""
        return Fleet(
            engine=engine, groups=groups, port=own["port"], health=own["health"], model=self.model, maker=self.maker,
            weights=self.model if weights is None else weights, per_node=self.per_node, **more,
        )  # fmt: skip


def checked_pools(plan: Plan) -> tuple[Pool, ...]:
    """The pools to write: one that serves, or prefill and decode. Raises `InputError` for any others and for tables."""
    roles = [pool.role for pool in plan.pools]
    if roles != ["serve"] and sorted(roles) != ["decode", "prefill"]:
        raise InputError(
            f"a plan of pools {shorten(', '.join(roles))} is not written; export takes one pool, or prefill and decode"
        )
    if any(pool.layout.is_table for pool in plan.pools):
        raise InputError("inputs.plan holds a table of plans; export takes one plan")
    formats = {pool.options.kv_dtype for pool in plan.pools}
    if len(formats) > 1:
        raise InputError(
            f"pools of caches in {' and '.join(sorted(shorten(str(name or 'auto')) for name in formats))} cannot hand them"
            " over; take one --kv-dtype for both"
        )
    return tuple(sorted(plan.pools, key=lambda pool: pool.role == "decode"))


def alone(plan: Plan, pool: Pool, *, without: Iterable[str] = ()) -> Plan:
    """``plan`` with ``pool`` alone as its serving pool; options named in ``without`` are the fleet's to say."""
    dropped = frozenset(without)
    extra = {name: value for name, value in pool.options.extra.items() if name not in dropped}
    own = replace(pool, role="serve", replicas=1, options=replace(pool.options, extra=extra))
    return replace(plan, pools=(own,))


def nodes_for(gpus: int, per_node: int | None) -> int:
    """Nodes that an engine of ``gpus`` takes: the fewest that hold it in equal parts."""
    if per_node is None or gpus <= per_node:
        return 1
    return next(nodes for nodes in range(-(-gpus // per_node), gpus + 1) if gpus % nodes == 0)
