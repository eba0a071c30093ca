"""How much a model loses when one group of its weights takes one format: measured on tokens, and guessed by cheap proxies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trilemma.errors import InputError, shorten
from trilemma.formats import catalogue
from trilemma.models.documents import read_json
from trilemma.precision.allocate import FormatOption, Problem
from trilemma.precision.variant_pass import variant_pass

if TYPE_CHECKING:
    import torch

    from trilemma.precision.emulation import Emulator, MatrixGroup

SCHEMA = "trilemma/sensitivity@1"
#: Hidden states of variants in flight take no more than this; more variants take further passes over the layers.
_STATES_BYTES = 2**31
_MOST_FILE = 256 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """One group in one format, everything else in full precision.

    ``kl`` is in nats per token, ``perplexity_change`` relative to full precision; both None where only proxies were asked
    for. ``sqnr_db`` is that of the weights, ``weighted_error`` the squared error over the squared weights, each column
    weighted by the mean square of its input (llama.cpp's importance matrix; tokens seen, for an embedding).
    """

    group: str
    format: str
    bytes: int
    kl: float | None
    perplexity_change: float | None
    sqnr_db: float
    weighted_error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivities:
    """Every group in every candidate format. ``elements`` by group; ``tokens`` were measured on."""

    model: str
    tokens: int
    perplexity: float
    elements: Mapping[str, int]
    rows: tuple[Sensitivity, ...]

    def problem(self) -> Problem:
        """The choice of a format for each group, with losses in nats per token. Raises `InputError` for proxies alone."""
        options: dict[str, list[FormatOption]] = {group: [] for group in self.elements}
        for row in self.rows:
            if row.kl is None:
                raise InputError("only proxies were measured; measure again without --proxies to allocate by KL")
            options[row.group].append(FormatOption(format=row.format, bytes=row.bytes, loss=max(row.kl, 0.0)))
        empty = [group for group, listed in options.items() if not listed]
        if empty:
            raise InputError(f"group {empty[0]} has no candidate that can hold it; add one, such as bf16")
        return Problem(
            groups=tuple(options), options=tuple(tuple(listed) for listed in options.values()),
            elements=tuple(self.elements.values()),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        rows = [
            {name: value for name, value in asdict(row).items() if value is not None and _finite(value)}
            for row in self.rows
        ]
        return {
            "schema": SCHEMA,
            "model": self.model,
            "tokens": self.tokens,
            "perplexity": self.perplexity,
            "elements": dict(self.elements),
            "sensitivities": rows,
        }


def measure_sensitivities(
    emulator: Emulator,
    formats: Sequence[str],
    *,
    proxies_only: bool = False,
    report: Callable[[str], None] | None = None,
) -> Sensitivities:
    """Each group of the decoder in each of ``formats``, one group at a time.

    Layers are read once per pass, and as many variants as fit are carried through them together, each from the layer in
    which it differs. Raises `InputError` for weights that a format cannot hold (a scale beyond its range).
    """
    import torch

    from trilemma.precision.emulation import check_formats

    known = check_formats(formats)
    with torch.inference_mode():
        inputs = _mean_squares(emulator)
        jobs, proxies = _jobs(emulator, [fmt.name for fmt in known], inputs)
        reference = emulator.hidden()
        matrix = emulator.head_matrix()
        base = emulator.compare(reference, reference, matrix, matrix)
        losses: dict[tuple[str, str], tuple[float, float]] = {}
        if not proxies_only:
            losses = _sweep(emulator, jobs, reference, report)
    rows = []
    for group, fmt in jobs:
        kl, perplexity = losses.get((group.name, fmt), (None, None))
        change = None if perplexity is None else perplexity / base.perplexity - 1
        sqnr_db, weighted = proxies[group.name, fmt]
        rows.append(
            Sensitivity(
                group=group.name,
                format=fmt,
                bytes=group.bytes_in(catalogue.get(fmt)),
                kl=kl,
                perplexity_change=change,
                sqnr_db=sqnr_db,
                weighted_error=weighted,
            )
        )
    return Sensitivities(
        model=emulator.weights.source,
        tokens=base.tokens,
        perplexity=base.perplexity,
        elements={group.name: group.elements for group in emulator.groups.values()},
        rows=tuple(rows),
    )


def read_sensitivities(path: str | Path) -> Sensitivities:
    """What `Sensitivities.to_json` wrote. Raises `InputError` naming what is wrong."""
    what = shorten(str(path))
    document = read_json(Path(path), limit=_MOST_FILE)
    document = document.get("sensitivity", document)
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise InputError(
            f"{what} holds no sensitivities; make it with trilemma precision measure WEIGHTS --data TEXT --json"
        )
    elements, listed = document.get("elements"), document.get("sensitivities")
    if not isinstance(elements, Mapping) or not isinstance(listed, list) or not elements or len(listed) > 10**6:
        raise InputError(f"{what} is damaged; measure again")
    rows = tuple(_row(one, elements, what) for one in listed)
    return Sensitivities(
        model=shorten(str(document.get("model", ""))),
        tokens=_whole(document.get("tokens"), "tokens", what),
        perplexity=_real(document.get("perplexity"), "perplexity", what),
        elements={str(name): _whole(value, "elements", what) for name, value in elements.items()},
        rows=rows,
    )


def _row(one: object, elements: Mapping[str, Any], what: str) -> Sensitivity:
    if not isinstance(one, Mapping) or one.get("group") not in elements or not isinstance(one.get("format"), str):
        raise InputError(f"{what}: {shorten(json.dumps(one, default=str))} is no sensitivity; measure again")
    kl, change = one.get("kl"), one.get("perplexity_change")
    return Sensitivity(
        group=str(one["group"]),
        format=catalogue.get(one["format"]).name,
        bytes=_whole(one.get("bytes"), "bytes", what),
        kl=None if kl is None else _real(kl, "kl", what),
        perplexity_change=None if change is None else _real(change, "perplexity_change", what),
        sqnr_db=_real(one.get("sqnr_db", math.inf), "sqnr_db", what, finite=False),
        weighted_error=_real(one.get("weighted_error", 0.0), "weighted_error", what),
    )


def _whole(value: object, name: str, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**53:
        raise InputError(f"{what}: {name} is {shorten(repr(value))}; it must be a whole number above 0")
    return value


def _real(value: object, name: str, what: str, *, finite: bool = True) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or (finite and not math.isfinite(value)):
        raise InputError(f"{what}: {name} is {shorten(repr(value))}; it must be a number")
    return float(value)


def _finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _mean_squares(emulator: Emulator) -> dict[str, torch.Tensor]:
    """Mean square of every input column by ``layer.kind``, in full precision; tokens seen, for the embedding."""
    import torch

    from trilemma.precision.decoder import normed

    found: dict[str, torch.Tensor] = {}

    def record(name: str, values: torch.Tensor) -> torch.Tensor:
        if not name.endswith((".k", ".v")):
            found[name] = values.flatten(0, -2).square().mean(0)
        return values

    last = emulator.hidden(record=record)
    found["head"] = normed(last, emulator.tensor("model.norm.weight"), emulator.shape).flatten(0, -2).square().mean(0)
    found["embedding"] = torch.bincount(emulator.inputs.flatten(), minlength=emulator.shape.vocab).float()
    return found


def _jobs(
    emulator: Emulator, formats: Sequence[str], inputs: Mapping[str, torch.Tensor]
) -> tuple[list[tuple[MatrixGroup, str]], dict[tuple[str, str], tuple[float, float]]]:
    """Every pair of group and format that can be, in the order of layers, and the proxies of each."""
    from trilemma.precision.emulation import LAYER_GROUPS, can_hold

    jobs: list[tuple[MatrixGroup, str]] = []
    proxies: dict[tuple[str, str], tuple[float, float]] = {}
    for group in emulator.groups.values():
        kind = group.role if group.layer is None else f"{group.layer}.{LAYER_GROUPS[group.role][1]}"
        for fmt in formats:
            if can_hold(group, catalogue.get(fmt)):
                jobs.append((group, fmt))
                proxies[group.name, fmt] = _proxies(emulator, group, fmt, inputs[kind])
    return jobs, proxies


def _proxies(emulator: Emulator, group: MatrixGroup, fmt: str, weight: torch.Tensor) -> tuple[float, float]:
    import torch

    sums = torch.zeros(4, dtype=torch.float64)
    per = weight[:, None] if group.role == "embedding" else weight
    for name, kept in emulator.in_format(group, fmt).items():
        exact = emulator.tensor(name)
        signal, noise = exact.square(), (exact - kept).square()
        for at, part in enumerate((signal, noise, signal * per, noise * per)):
            sums[at] += part.sum(dtype=torch.float64)
    signal, noise, weighted_signal, weighted_noise = sums.tolist()
    sqnr_db = 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else math.inf
    return sqnr_db, weighted_noise / weighted_signal if weighted_signal > 0 else 0.0


def _sweep(
    emulator: Emulator,
    jobs: Sequence[tuple[MatrixGroup, str]],
    reference: torch.Tensor,
    report: Callable[[str], None] | None,
) -> dict[tuple[str, str], tuple[float, float]]:
    at_once = max(1, _STATES_BYTES // max(reference.numel() * 4, 1))
    losses: dict[tuple[str, str], tuple[float, float]] = {}
    saved: tuple[int, torch.Tensor] | None = None
    for start in range(0, len(jobs), at_once):
        batch = jobs[start : start + at_once]
        upcoming = jobs[start + at_once][0] if start + at_once < len(jobs) else None
        saved = variant_pass(emulator, batch, reference, saved, upcoming, losses)
        if report is not None:
            report(f"{min(start + at_once, len(jobs)):,} of {len(jobs):,} groups x formats measured")
    return losses
