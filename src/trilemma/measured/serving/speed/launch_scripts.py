"""What the scripts behind published figures set and their rows do not say: ``data/validation/launch_scripts.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.data.files import read_data
from trilemma.hardware.accelerator import Accelerator
from trilemma.measured.dating import parse_date
from trilemma.measured.tables import Row
from trilemma.plans import Layout
from trilemma.timing import eras
from trilemma.timing.eras import flag_ahead
from trilemma.timing.sampling import waits_for_tokens
from trilemma.workloads import SAMPLING


def as_launched(
    row: Row, layout: Layout, *, engine: str, accelerator: Accelerator, mixture: bool, assumed: list[str]
) -> Layout:
    """``layout`` as the row's script cut the model, where its columns say the ranks alone."""
    for script in _scripts():
        alone = script.get("attends_alone") and layout.tp > 1 and layout.dp == 1
        if alone and mixture and _is_of(script, row, engine, accelerator):
            ranks = int(layout.tp)
            assumed.append(f"attention of its own on each of {ranks} ranks: {script['source']}")
            return Layout(tp=1, pp=layout.pp, dp=ranks, ep=ranks)
    return layout


def passes_waited(
    row: Row,
    layout: Layout,
    *,
    engine: str,
    accelerator: Accelerator,
    mixture: bool,
    isl: float,
    osl: float,
    in_flight: float,
) -> float:
    """Passes that a request waits in the mean before its prompt is taken up, by what a script asks of the scheduler; 0 where no
    script says otherwise.

    One that ``polls`` looks for new requests after every so many passes: half of them are waited for. One that ``holds`` prompts
    back lets up to so many passes go by until they fill a pass (`held_passes`).
    """
    waited = 0.0
    for script in _scripts():
        if not _is_of(script, row, engine, accelerator) or not _is_laid_out(script, row, layout, mixture):
            continue
        if "polls" in script:
            every = max((start, every) for start, every in script["polls"] if in_flight >= start)[1]
            waited = (float(every) - 1) / 2
        if "holds" in script:
            passes, tokens = script["holds"]
            waited = held_passes(float(passes), fills=tokens / isl, arriving=(in_flight - 1) / osl)
    return waited


def held_passes(passes: float, *, fills: float, arriving: float) -> float:
    """Passes that prompts wait in the mean where a scheduler holds them back for ``passes`` since the first, or until there are
    ``fills`` of them; ``arriving`` more come with each pass.

    The first waits for all of them, those after it for half. Numbers. Source: TensorRT-LLM, PyExecutor._waiting_requests
    (batch_wait_timeout_iters, batch_wait_max_tokens_ratio).
    """
    more = min(passes * arriving, max(fills - 1, 0.0))
    window = min(passes, more / arriving) if arriving > 0 else passes
    return window * (1 + more / 2) / (1 + more)


def sampling_of(row: Row, *, engine: str, accelerator: Accelerator) -> str:
    """What the requests of a row ask of the sampler: as its script says, else the likeliest token, which benchmarks ask for."""
    scripts = (script for script in _scripts() if "sampling" in script and _is_of(script, row, engine, accelerator))
    return next((str(script["sampling"]) for script in scripts), SAMPLING[0])


def flags_of(row: Row, *, engine: str, accelerator: Accelerator) -> dict[str, float]:
    """Numbers of the machine that a row's script sets: prompt tokens that graphs replay, the share of requests that find kernels
    uncompiled, that of the prompts ahead which one waits for."""
    told: dict[str, float] = {}
    for script in _scripts():
        if "sets" in script and _is_of(script, row, engine, accelerator) and _is_then(script, row):
            told |= script["sets"]
    return told


def works_ahead(row: Row, *, engine: str, accelerator: Accelerator, sampling: str) -> bool:
    """Whether the scheduler works ahead of the cards: by the flag that the row tells, else by that of its script, else as the
    stated version does by default (none stated: the newest)."""
    flag = flag_ahead(engine)
    scripts = (script for script in _scripts() if flag in script.get("flags", {}))
    stated = [script["flags"][flag] for script in scripts if _is_of(script, row, engine, accelerator)]
    said = _told(flag, row.text("notes")[:2000]) if flag else None
    words = [one for one in (said, *stated) if one is not None]
    told = {flag: words[0]} if words else {}
    waits = waits_for_tokens(sampling, engine=engine)
    return eras.works_ahead(engine, row.text("version")[:100] or None, told) and not waits


def _told(flag: str, text: str) -> bool | None:
    """What ``text`` says of a switch, written as ``--flag``, ``--no-flag``, ``flag=true`` or ``flag: false``; None: nothing."""
    name = "[-_]".join(map(re.escape, re.split("[-_]", flag)))
    found = re.search(rf"(?<![\w])(?:--)?(no[-_])?{name}(?:\s*[=:]\s*(true|false|1|0))?(?![\w-])", text, re.IGNORECASE)
    if found is None:
        return None
    return (found[1] is None) == ((found[2] or "true").lower() in ("true", "1"))


def _scripts() -> Sequence[Mapping[str, Any]]:
    scripts: Sequence[Mapping[str, Any]] = read_data("validation/launch_scripts.toml")["script"]
    return scripts


def _is_of(script: Mapping[str, Any], row: Row, engine: str, accelerator: Accelerator) -> bool:
    generation = accelerator.architecture.split(" ")[0]
    return (
        script["engine"] == engine
        and row.text("source_ref").startswith(script.get("found_in", ""))
        and script.get("notes", "") in row.text("notes")
        and generation in script.get("architectures", (generation,))
    )


def _is_then(script: Mapping[str, Any], row: Row) -> bool:
    """Whether a row was measured before the day of a script, of its ``release``, by that for its model and its ``outputs``; a row
    that states no day was not."""
    day, outputs = parse_date(row.text("notes")), script.get("outputs")
    return (
        ("before" not in script or (day is not None and day < script["before"]))
        and script.get("release", "") in row.text("version")[:100]
        and any(word in row.text("model").lower() for word in script.get("models", ("",)))
        and (outputs is None or row.number("osl", low=0, high=1e8) in outputs)
    )


def _is_laid_out(script: Mapping[str, Any], row: Row, layout: Layout, mixture: bool) -> bool:
    """Whether the conditions of a script hold: nominal lengths, ranks, and what kind of model it is for."""
    lengths = script.get("lengths")
    return (
        (lengths is None or [row.number("isl", low=0, high=1e8), row.number("osl", low=0, high=1e8)] == lengths)
        and int(layout.tp) < script.get("tp_below", 1 << 30)
        and int(layout.dp) >= script.get("dp_from", 1)
        and mixture in script.get("mixture", (True, False))
    )
