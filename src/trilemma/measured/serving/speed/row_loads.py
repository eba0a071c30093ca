"""The load of a row: requests in flight or arriving, and how long they are."""

from __future__ import annotations

import re

from trilemma.errors import shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.measured.tables import Row, UnusableRow
from trilemma.timing.coefficients import coefficients_for
from trilemma.timing.eras import (
    LAUNCHES,
    backend_factors,
    backend_in,
    fitted_release,
    kernels_at,
    launches_of,
    without_library,
)

#: InferenceX draws lengths evenly from 80 to 100 % of the nominal ones (its RANDOM_RANGE_RATIO), 90 % in the mean.
_DRAWN_SHARE = 0.9
_QUEUED = ("max load", "scenario=offline")
#: Runs at the highest rate that kept some limit of latency: at most what all requests queued at once reach.
_LIMITED = ("scenario=server", "scenario=interactive")
_PROMPTS = re.compile(r"\bprompts[ =]([0-9]{1,7})\b")
_AT_RATE = re.compile(r"rate\s*=\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(?:req(?:uest)?s?\s*/\s*s)?")


def rate_of(row: Row) -> float | None:
    """Requests a second of an open loop, stated as ``rate=R`` with or without a unit; None for another load."""
    match = _AT_RATE.fullmatch(row.text("concurrency_or_batch").lower()[:100])
    if match is None:
        return None
    rate = float(match[1])
    if not 1e-6 <= rate <= 1e6:
        raise UnusableRow(f"rate {rate:g} is outside 1e-06 to 1e+06 requests a second")
    return rate


def load_of(row: Row) -> tuple[float, bool]:
    """(requests in flight, whether every request is queued at once)."""
    text = row.text("concurrency_or_batch").lower()
    if text.startswith((*_QUEUED, *_LIMITED)):
        return float("inf"), True
    if not text:
        raise UnusableRow("states no concurrency")
    if text.startswith("scenario="):
        raise UnusableRow(f"{shorten(text)}: requests arrive at a rate that the row does not state")
    value = row.number("concurrency_or_batch", low=1, high=10**6)
    if value is None:
        raise UnusableRow("states no concurrency")
    return value, False


def is_burst(row: Row, concurrency: float) -> bool:
    """Whether no more prompts were sent than are in flight, all at once: a load that is never steady."""
    notes = row.text("notes")[:2000]
    prompts = _PROMPTS.search(notes)
    return "all requests at once" in notes or (prompts is not None and float(prompts[1]) <= concurrency)


def is_limited(row: Row) -> bool:
    """Whether the rate was raised until a limit of latency was met, which the row does not state."""
    return row.text("concurrency_or_batch").lower().startswith(_LIMITED)


def lengths_of(row: Row, metric: str) -> tuple[float, float]:
    """Mean tokens of a prompt and an output."""
    isl, osl = row.number("isl", low=0, high=10**8), row.number("osl", low=0, high=10**8)
    if metric == "prefill_tok_s":
        if not isl:
            raise UnusableRow("states no prompt length")
        osl = osl or 0.0
    elif not osl:
        raise UnusableRow("states no output length")
    if isl is None:
        raise UnusableRow("states no prompt length")
    share = _DRAWN_SHARE if "origin=InferenceX" in row.text("notes") else 1.0
    return isl * share, (osl or 0.0) * share


_DEPTH = re.compile(r"\bdepth[ =]+([0-9]{1,8})\b")
_MICRO_BATCH = re.compile(r"\b(?:n_)?ubatch[ =]+([0-9]{1,6})\b|(?<![\w-])-u?b[ =]+([0-9]{1,6})\b")
_BACKEND = re.compile(r"\bbackend=([^;]{1,60})")
_LIBRARY = re.compile(r"\bhipblaslt=(1|true|0|false|(?=;))", re.IGNORECASE)
_BUILD = re.compile(r"(?:\bb|\()(\d{4,5})\b")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_FUSED = re.compile(r"(?:flash_attn|fa)=(?:-fa )?(1|true|0|false|(?=;))", re.IGNORECASE)


def cached_of(row: Row, isl: float) -> float:
    """Tokens that were cached before the prompt whose rate a row tells: ``isl`` counts them where notes name a depth."""
    match = _DEPTH.search(row.text("notes")[:2000])
    depth = float(match[1]) if match is not None else 0.0
    return depth if depth < isl else 0.0


def backend_of_row(row: Row) -> str | None:
    """Whose kernels ran, where the notes of a row name a backend; a library that they say was left out is no part of it."""
    match = _BACKEND.search(row.text("notes")[:2000])
    found = None if match is None else backend_in(match[1])
    library = _LIBRARY.search(row.text("notes")[:2000])
    left_out = library is not None and library[1].lower() not in ("1", "true")
    return without_library(found) if found is not None and left_out else found


def _build(row: Row) -> str | None:
    """The number of a build, stated as ``b6918`` or ``(6918)``."""
    return f"b{found[1]}" if (found := _BUILD.search(row.text("version")[:200])) else None


def _built(row: Row, engine: str) -> str | None:
    """The build that ran: as stated, the newest (None) where a commit alone names it, else what such runs were fitted as."""
    build = _build(row)
    if build is None and not _COMMIT.fullmatch(row.text("version")[:40]):
        return fitted_release(engine)
    return build


def factors_of_row(row: Row, engine: str, accelerator: Accelerator) -> tuple[tuple[str, float], ...]:
    """What the terms of serving are multiplied by for the build and the backend of a row, by term."""
    factors = dict.fromkeys(LAUNCHES, launches_of(engine, _build(row), accelerator))
    fused = not dict(kernels_of_row(row, engine, accelerator)).get("score_bytes")
    backend, built = backend_of_row(row), _built(row, engine)
    for term, factor in backend_factors(engine, built, accelerator, backend, fused=fused).items():
        factors[term] = factors.get(term, 1.0) * factor
    return tuple(sorted(factors.items()))


def kernels_of_row(row: Row, engine: str, accelerator: Accelerator) -> tuple[tuple[str, float], ...]:
    """Coefficients that the release and the options of a row's command set: its kernels, its micro-batch, fused attention."""
    notes = row.text("notes")[:2000]
    numbers = kernels_at(engine, _built(row, engine), accelerator, backend_of_row(row))
    micro, fused = _MICRO_BATCH.search(notes), _FUSED.search(notes)
    if micro is not None and coefficients_for(accelerator, engine).micro_batch_rows > 0:
        numbers["micro_batch_rows"] = float(micro[1] or micro[2])
    if fused is not None and fused[1].lower() in ("1", "true"):
        numbers["score_bytes"] = 0.0
    return tuple(sorted(numbers.items()))


_MOST = re.compile(r"max[_-](?:num[_-]seqs|running[_-]requests)[ =:]+([1-9][0-9]{0,5})\b", re.IGNORECASE)


def most_sequences_of(row: Row) -> float | None:
    """The most requests that one replica runs at once, where the row tells its server's flags; None for the engine's default."""
    match = _MOST.search(row.text("notes")[:2000])
    return None if match is None else float(match[1])


#: Words of a launch file or its settings that name drafts: ``dual/bf16-mtp.yml``, ``MTP n=2``.
_DRAFTS = re.compile(r"(?<!no)[-_]mtp\.ya?ml|(?<!no-)\bMTP n=[1-9]|\bn-swept\b", re.IGNORECASE)


def refuse_unstated(row: Row) -> None:
    """Raise `UnusableRow` where what ran is not what the columns of a row say."""
    notes = row.text("notes")[:2000]
    if "PER 8-GPU NODE" in notes:
        raise UnusableRow("a figure of one node of a larger deployment")
    if notes.startswith("CPU inference"):
        raise UnusableRow("runs on a CPU")
    if _DRAFTS.search(notes):
        raise UnusableRow("verifies drafts whose acceptance is not stated")
