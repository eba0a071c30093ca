"""The age of an engine: factors of a release's times over those of the releases that the terms of serving were fitted to."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.versions import padded, parse_version

#: Terms of serving that are shares of a rate, and those that are times.
_SHARES = ("matmul", "stream", "cache_stream", "prefill_attention", "link")
_TIMES = ("kernel", "experts_kernel", "step", "sequence", "latency", "request", "queued_request")
LAUNCHES = ("kernel", "experts_kernel")


@dataclass(frozen=True, kw_only=True, slots=True)
class Era:
    """What a release multiplies the terms of serving by, and between which factors of its times nine of ten deployments lie.

    ``numbers`` are coefficients that differ from today's: what its collectives reach of PCIe, which kernels it runs; ``time`` is
    what every time of a step is multiplied by.
    """

    factors: Mapping[str, float] = field(default_factory=dict)
    time: float = 1.0
    numbers: Mapping[str, float] = field(default_factory=dict)
    low: float = 1.0
    high: float = 1.0
    name: str = ""


def era_of(
    engine: str, version: str | None, accelerator: Accelerator, *, spilled: bool = False, backend: str | None = None
) -> Era:
    """The era of ``version`` of ``engine`` (None: the newest) on a card; ``spilled``: some layers or experts lie on the host;
    ``backend``: whose kernels run, None for those of the card's maker."""
    found = _age_of(engine, version, accelerator, spilled=spilled)
    factors, numbers = dict(found.factors), kernels_at(engine, version, accelerator, backend)
    fused = not numbers.get("score_bytes")
    for term, factor in backend_factors(engine, version, accelerator, backend, fused=fused).items():
        factors[term] = factors.get(term, 1.0) * factor
    return replace(found, factors=factors, numbers={**found.numbers, **numbers})


def kernels_at(
    engine: str, version: str | None, accelerator: Accelerator, backend: str | None = None
) -> dict[str, float]:
    """Coefficients of the kernels that a release runs where they differ from the newest; none where no release is stated.

    A table of numbers by name. They and their sources stand in ``[[kernels]]`` of ``data/coefficients/engine_eras.toml``."""
    numbers: dict[str, float] = {}
    for row in _rows()["kernels"]:
        told = version is not None and _is_of(row, engine, accelerator) and _runs(row, accelerator, backend)
        if told and _is_before(str(version), row["before"], engine):
            numbers |= row["numbers"]
    return numbers


def backend_factors(
    engine: str, version: str | None, accelerator: Accelerator, backend: str | None = None, *, fused: bool = True
) -> dict[str, float]:
    """What the terms of serving are multiplied by under ``backend`` (None: that of the card's maker) of ``version`` (None: the
    newest) on such chips, attention ``fused`` or not; none where nothing is known of it.

    A table of numbers by term. Source: ``[[backends]]`` of ``data/coefficients/engine_eras.toml``.
    """
    factors: dict[str, float] = {}
    for row in _rows()["backends"]:
        if not (_is_of(row, engine, accelerator) and _runs(row, accelerator, backend)):
            continue
        before = "before" not in row or (version is not None and _is_before(version, row["before"], engine))
        since = "since" not in row or version is None or not _is_before(version, row["since"], engine)
        if not (before and since) or row.get("fused", fused) is not fused:
            continue
        for term, factor in row["factors"].items():
            factors[term] = factors.get(term, 1.0) * float(factor)
    return factors


def backend_in(text: str) -> str | None:
    """The backend that a device's name or a label of a run tells of (``Vulkan0``, ``rocwmma``), None where none is named.

    Scalars. Source: ``[backend_words]`` of ``data/coefficients/engine_eras.toml``."""
    words: Mapping[str, list[str]] = _rows()["backend_words"]
    lower = text.lower()
    return next((name for name, said in words.items() if any(word in lower for word in said)), None)


def backend_asked(options: Mapping[str, Any]) -> str | None:
    """The backend of the devices that an engine's own ``options`` name by flag, None where they name none. A scalar.

    Source: by definition."""
    devices = options.get("device")
    return None if devices is None else backend_in(str(devices))


def without_library(backend: str) -> str:
    """The backend that ``backend`` is where its library of tuned products is switched off: itself, where it has none.

    Scalars. Source: ``[without_library]`` of ``data/coefficients/engine_eras.toml``."""
    return str(_rows()["without_library"].get(backend, backend))


def _runs(row: Mapping[str, Any], accelerator: Accelerator, backend: str | None) -> bool:
    """Whether a row holds under a backend: that of the maker where none is stated."""
    if "backends" not in row:
        return True
    return (backend or _rows()["default_backends"].get(accelerator.vendor)) in row["backends"]


def fitted_release(engine: str) -> str | None:
    """The release of ``engine`` whose kernels runs that state none had, where its kernels have changed since."""
    known: Mapping[str, str] = _rows()["fitted_releases"]
    return known.get(engine)


def aged(time: Any) -> dict[str, Any]:
    """What an age of ``time`` (number or array) multiplies terms of serving by. A definition."""
    return dict.fromkeys(_SHARES, 1.0 / time) | dict.fromkeys(_TIMES, time)


def age_of(engine: str, version: str | None, accelerator: Accelerator) -> Era:
    """The age of a release that is stated (None: the newest), by table ``slower`` of ``data/coefficients/engine_eras.toml``."""
    for row in _rows()["slower"]:
        if _is_of(row, engine, accelerator) and is_before(version, row["before"], engine):
            return _age(row)
    return Era()


def age_within(engine: str, first: datetime.date, last: datetime.date, accelerator: Accelerator) -> Era:
    """The age of a release of which only the time of its runs is known, from day to day: that of the newest release of the last
    day, as wide as those of both days together (table ``slower``)."""
    rows = [row for row in _rows()["slower"] if _is_of(row, engine, accelerator)]
    ages = [next((_age(row) for row in rows if day < row["until"]), Era()) for day in (last, first)]
    newest, oldest = ages
    return replace(
        newest,
        low=min(age.low * age.time for age in ages) / newest.time,
        high=max(newest.high, oldest.high * oldest.time / newest.time),
    )


def with_age(low: float, high: float, era: Era) -> tuple[float, float]:
    """Factors ``low`` and ``high`` of a time with the range of its release's age: causes apart, so squares of logarithms add."""
    return math.exp(-math.hypot(math.log(low), math.log(era.low))), math.exp(
        math.hypot(math.log(high), math.log(era.high))
    )


def _age(row: Mapping[str, Any]) -> Era:
    time = float(row["time"])
    name = f"{row['engine']} before {row['before']}"
    return Era(factors=aged(time), time=time, low=row["low"] / time, high=row["high"] / time, name=name)


def _age_of(engine: str, version: str | None, accelerator: Accelerator, *, spilled: bool) -> Era:
    document = _rows()
    slower = age_of(engine, version, accelerator)
    if slower.name:
        return slower
    for row in document["launches"]:
        if spilled and row.get("whole"):
            continue
        if _is_of(row, engine, accelerator) and (version is None or not _is_before(version, row["since"], engine)):
            factors = dict.fromkeys(LAUNCHES, float(row["factor"]))
            factors |= {name: float(row[name]) for name in _SHARES if name in row}
            return Era(factors=factors, low=row["low"], high=row["high"])
    for row in document["collectives"]:
        if _is_of(row, engine, accelerator) and version is not None and _is_before(version, row["before"], engine):
            return Era(numbers={"pcie_share": float(row["pcie_share"])})
    return Era()


def launches_of(engine: str, version: str | None, accelerator: Accelerator) -> float:
    """What a release that is stated multiplies the time of launches by, a number; 1 for those that the terms were fitted to, and
    where none is stated. The factors and their sources stand in ``data/coefficients/engine_eras.toml``."""
    if version is None:
        return 1.0
    rows = _rows()["launches"]
    found = (row for row in rows if _is_of(row, engine, accelerator) and not _is_before(version, row["since"], engine))
    return next((float(row["factor"]) for row in found), 1.0)


def works_ahead(engine: str, version: str | None = None, options: Mapping[str, Any] | None = None) -> bool:
    """Whether the scheduler of ``version`` of ``engine`` (None: the newest) prepares a step while the cards compute the last one,
    under its own ``options`` by flag. Source: table ``ahead`` of ``data/coefficients/engine_eras.toml``."""
    row = next((row for row in _rows()["ahead"] if row["engine"] == engine), None)
    if row is None:
        return False
    said = (options or {}).get(row["flag"])
    if said is not None:
        return bool(said) is row["told"]
    return not is_before(version, row["since"], engine)


def is_before(version: str | None, other: str, engine: str) -> bool:
    """Whether a release that is stated came before another, by their numbers; none stated is the newest. A definition."""
    return version is not None and _is_before(version, other, engine)


def flag_ahead(engine: str) -> str:
    """The flag by which ``engine`` is told whether to work ahead, "" where table ``ahead`` of ``engine_eras.toml`` has none."""
    return next((str(row["flag"]) for row in _rows()["ahead"] if row["engine"] == engine), "")


@cache
def _rows() -> Mapping[str, Any]:
    return read_data("coefficients/engine_eras.toml")


def _is_of(row: Mapping[str, Any], engine: str, accelerator: Accelerator) -> bool:
    capability = accelerator.compute_capability or 0.0
    of_kind = accelerator.vendor in row["vendors"] and capability >= row.get("compute_capability_from", 0.0)
    chips = row.get("chips")
    of_kind = of_kind and (chips is None or accelerator.architecture.split(" ")[0] in chips)
    return bool(row["engine"] == engine and of_kind)


def _is_before(version: str, other: str, engine: str) -> bool:
    """Whether a release came before another; a word that is no release is taken for the newest."""
    try:
        return padded(parse_version(version, engine=engine)) < padded(parse_version(other, engine=engine))
    except InputError:
        return False
