"""What an engine upgrade changes for one command: its flags, the engine's rules, the options in force, the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any, ClassVar

from trilemma import engines
from trilemma.columns import column
from trilemma.commands.flags import FlagTable
from trilemma.engines.base import EngineCommand, StartUp
from trilemma.engines.engine import Engine
from trilemma.engines.in_force import name_at
from trilemma.errors import PlanWarning
from trilemma.estimate.doubt import with_warnings
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.layouts import check_layout
from trilemma.estimate.pool_start import check_positions
from trilemma.estimate.serving import from_start_up
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.question import Question
from trilemma.workloads import Serving

#: Codes of warnings by which a version refuses a flag.
REFUSED = (
    "removed-flag",
    "newer-flag",
    "refused-flag",
    "unknown-flag",
    "removed-value",
    "refused-value",
    "unknown-value",
)
#: Options in force that are told when they change: field of a start-up → words.
_OPTIONS = {
    "memory_fraction": "memory fraction", "context": "longest request", "max_seqs": "most sequences",
    "max_batched_tokens": "most tokens in a step", "kv_format": "cache format",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionChange:
    """One thing that differs: ``name``, what it was and is, and where that is known from."""

    COLUMNS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "name": {}, "before": column(exact=True, keep="all"), "after": column(exact=True, keep="all"),
        "known_from": column("source"),
    }  # fmt: skip

    name: str
    before: Any
    after: Any
    source: str = ""

    @property
    def known_from(self) -> str | None:
        return self.source or None


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """A command under two versions of its engine.

    ``refused`` are flags of the command that the new version does not take, ``command`` is what to run instead: renamed flags
    under their new names, gone ones left out. ``rules`` are changed facts of the engine, ``options`` changed defaults of this
    command, ``before`` and ``after`` the estimates.
    """

    engine: str
    old: str
    new: str
    before: Estimate
    after: Estimate
    refused: tuple[PlanWarning, ...]
    renamed: tuple[VersionChange, ...]
    rules: tuple[VersionChange, ...]
    options: tuple[VersionChange, ...]
    command: str

    @property
    def harmless(self) -> bool:
        """Whether the command goes on as it stands: every flag is taken and the plan starts."""
        return not self.refused and self.after.fits


def upgrade(
    words: Sequence[str],
    *,
    engine: str,
    old: str,
    new: str,
    model: Model,
    cluster: Cluster,
    free_bytes: float | None = None,
) -> Upgrade:
    """The command ``words`` (as `trilemma.engines.extract.extract` gives them) under version ``old`` and ``new``.

    Raises `InputError` for versions that are none.
    """
    serving = engines.get(engine)
    table = serving.flags()
    table.at(old), table.at(new)
    then = serving.read(words, version=old)
    renamed, now = _renamed(words, table, new), serving.read(words, version=new)
    known = {warning.message for warning in then.warnings}
    refused = tuple(c for c in now.warnings if c.code in REFUSED and c.message not in known)
    before = _start(serving, then, old, model, cluster, free_bytes)
    after = _start(serving, now, new, model, cluster, free_bytes)
    first = _estimate(before, then, old, model, cluster)
    second = _estimate(after, now, new, model, cluster)
    return Upgrade(
        engine=table.engine,
        old=before.version,
        new=after.version,
        before=first,
        after=second,
        refused=refused,
        renamed=renamed,
        rules=_rules(serving, old, new),
        options=tuple(
            VersionChange(name=words_, before=getattr(before, name), after=getattr(after, name))
            for name, words_ in _OPTIONS.items()
            if getattr(before, name) != getattr(after, name)
        ),
        command=str(second.command),
    )


def _renamed(words: Sequence[str], table: FlagTable, new: str) -> tuple[VersionChange, ...]:
    """The flags of ``words`` that ``new`` calls otherwise; their values are read under these names."""
    at, changes = table.at(new), []
    for word in words:
        head = word.partition("=")[0]
        given = table.lookup(head) if head.startswith("-") and len(head) > 1 else None
        if given is not None and given.flag.gone_at(at) and (today := name_at(given.flag, table, at)) is not None:
            changes.append(
                VersionChange(name=f"--{given.flag.name}", before=f"--{given.flag.name}", after=f"--{today}")
            )
    return tuple(changes)


def _start(
    engine: Engine, command: EngineCommand, version: str, model: Model, cluster: Cluster, free_bytes: float | None
) -> StartUp:
    pool = command.plan.pool
    check_layout(model, pool.layout)
    check_positions(model, pool, command.plan.engine.name)
    return engine.start_up(
        model=model, accelerator=cluster.accelerator, layout=pool.layout, options=pool.options, draft=pool.draft,
        version=version, free_bytes=free_bytes,
    )  # fmt: skip


def _estimate(start: StartUp, command: EngineCommand, version: str, model: Model, cluster: Cluster) -> Estimate:
    plan = replace(command.plan, engine=replace(command.plan.engine, version=version))
    question = Question(model=model, cluster=cluster, workload=Serving(), plan=plan, served_as=command.model)
    answer = from_start_up(start, question)
    return with_warnings(answer, command.warnings)


def _rules(engine: Engine, old: str, new: str) -> tuple[VersionChange, ...]:
    """Facts of the engine that differ, with the source of the newer one."""
    before, after = engine.facts(old), engine.facts(new)
    return tuple(
        VersionChange(name=name, before=_plain(before[name][0]), after=_plain(value), source=source)
        for name, (value, source) in after.items()
        if name in before and before[name][0] != value
    )


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
