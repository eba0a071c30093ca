"""Which policy an engine schedules by, and its rules by version, from ``data/simulation/schedulers.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, UnknownName
from trilemma.simulation.serving.policies.policy import SchedulingPolicy
from trilemma.simulation.serving.policies.prefill_first import PrefillFirst
from trilemma.simulation.serving.policies.token_budget import MaxUtilization, TokenBudget
from trilemma.simulation.serving.policies.whole_requests import Slots, WholeRequests
from trilemma.versions import padded, parse_version

#: Name → class. Each takes ``tokens``, the most of a step, and what its row says beside.
POLICIES: Mapping[str, Any] = {
    "token budget": TokenBudget,
    "prefill first": PrefillFirst,
    "whole requests": WholeRequests,
    "max utilization": MaxUtilization,
    "slots": Slots,
}
#: Policies that cut no prompts unless their row says so.
_WHOLE_PROMPTS = ("whole requests", "max utilization")
_OF_ROWS = ("engine", "since", "source", "policy", "prefix_cache", "tokens", "not_with")


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerRules:
    """The policy of one version of an engine: ``more`` are its own rules, ``tokens`` of a step where the engine has no option for
    them (0: it has)."""

    policy: str
    more: Mapping[str, Any]
    tokens: int
    prefix_cache: bool
    source: str

    @property
    def longest_in_one_step(self) -> bool:
        """Whether a step takes the longest prompt whatever its budget."""
        return self.policy == "prefill first" and not self.chunked

    @property
    def chunked(self) -> bool:
        """Whether prompts are cut to what is left of a step."""
        return bool(self.more.get("chunked", self.policy not in _WHOLE_PROMPTS))

    def made(self, tokens: int) -> SchedulingPolicy:
        """The policy of one engine that puts ``tokens`` into a step."""
        found: SchedulingPolicy = POLICIES[self.policy](tokens=tokens, **self.more)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCacheRules:
    """How an engine keeps caches in the host's memory: ``writes_through`` as they are computed or back when they are thrown out;
    what comes back is waited for before the step (``before``) or within it."""

    writes_through: bool
    before: bool
    source: str


def host_cache_of(engine: str, version: str) -> HostCacheRules:
    """The rules of ``version`` of ``engine`` for caches that leave the card. Raises `InputError` where none are known."""
    row = _newest("host_cache", engine, version)
    if row is None:
        known = ", ".join(f"{one['engine']} from {one['since']} on" for one in _document()["host_cache"])
        raise InputError(f"how {engine} {version} keeps caches in the host's memory is not known here; use {known}")
    return HostCacheRules(
        writes_through=row["writes"] == "through", before=row["loads"] == "before", source=row["source"]
    )


def host_keeps_of(engine: str) -> str:
    """How many adapters the host keeps under ``engine``: "slots" or "all"."""
    return next(str(row["host_keeps"]) for row in _document()["adapters"] if row["engine"] == engine)


def scheduler_of(
    engine: str, version: str, policy: str | None = None, extra: Mapping[str, Any] | None = None
) -> SchedulerRules:
    """The rules of ``version`` of ``engine`` with its own options ``extra``, or another ``policy`` under its options.

    Raises `InputError` where none are known, or not with those options.
    """
    row = _newest("scheduler", engine, version)
    if row is None:
        known = ", ".join(dict.fromkeys(str(one["engine"]) for one in _document()["scheduler"]))
        raise InputError(f"how {engine} {version} schedules is not known here; use one of {known}")
    for name, value in row.get("not_with", {}).items():
        if (extra or {}).get(name) == value:
            raise InputError(f"how {engine} schedules with --{name} {value} is not known here; leave it out")
    if policy is not None and policy.replace("-", " ") not in POLICIES:
        raise UnknownName("policy", policy, [name.replace(" ", "-") for name in POLICIES])
    name = row["policy"] if policy is None else policy.replace("-", " ")
    more = {key: value for key, value in row.items() if key not in _OF_ROWS} if name == row["policy"] else {}
    return SchedulerRules(
        policy=name, more=more, tokens=int(row.get("tokens", 0)), prefix_cache=bool(row.get("prefix_cache", True)),
        source=row["source"],
    )  # fmt: skip


def _newest(table: str, engine: str, version: str) -> Mapping[str, Any] | None:
    """The last row of ``engine`` that ``version`` has reached."""
    rows: list[Mapping[str, Any]] = _document()[table]
    found = [row for row in rows if row["engine"] == engine and _is_since(version, row["since"], engine)]
    return found[-1] if found else None


@cache
def _document() -> Mapping[str, Any]:
    return read_data("simulation/schedulers.toml")


def _is_since(version: str, since: str, engine: str) -> bool:
    """A word that is no release counts as the newest."""
    try:
        return padded(parse_version(version, engine=engine)) >= padded(parse_version(since, engine=engine))
    except InputError:
        return True
