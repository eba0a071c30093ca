"""An SGLang command line to a plan: every flag that changes memory, layout, speed or start-up gets its meaning here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trilemma.commands.command_line import FlagSettings, read_settings
from trilemma.engines.base import EngineCommand
from trilemma.engines.in_force import put_in_force, uncounted
from trilemma.engines.launch import check_visible, named_model, share_of_card, take_apart
from trilemma.engines.sglang.flags import table
from trilemma.errors import InputError, PlanWarning
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB

#: Variables of the environment that change the memory plan; kept in ``extra`` under their own name.
VARIABLES = ("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
#: SGLang's names of speculative methods → this project's.
METHODS = {"nextn": "mtp", "eagle": "eagle", "eagle3": "eagle3", "standalone": "draft", "ngram": "ngram", "mtp": "mtp"}
_DRAFT_FLAGS = ("algorithm", "draft-model-path", "num-draft-tokens", "num-steps", "eagle-topk")
_DTYPES = {"half": "float16", "float": "float32"}
_STEPS = 3


def read(argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
    """The plan that an SGLang command asks for.

    ``argv``: ``[NAME=value…] sglang serve MODEL flags…`` or ``python -m sglang.launch_server --model-path …``, as
    `trilemma.engines.extract.extract` gives them; ``version`` overrides what an image's tag says. Unknown flags are
    named, not fatal. Raises `InputError` naming flag, value and remedy.
    """
    launch = take_apart([str(word) for word in argv], engine="sglang")
    version = version or _version_of(launch.image)
    settings = read_settings(launch.words, table())
    warnings = put_in_force(settings, table(), version)
    model = named_model(settings, warnings, engine="SGLang", remedy="give sglang serve MODEL or --model-path MODEL")
    extra = _extra(settings, version)
    extra.update({name: launch.environment[name] for name in VARIABLES if name in launch.environment})
    layout = _layout(settings, extra, warnings)
    draft = _draft(settings, extra)
    options = _options(settings, extra)
    if options.max_seqs is not None and extra.get("enable-dp-attention"):
        # scheduler: max_running_requests // dp_size for each attention replica
        options = replace(options, max_seqs=max(int(options.max_seqs) // int(layout.dp), 1))
    warnings += uncounted(extra, table())
    facts = launch.facts(settings)
    if extra.get("nnodes", 1) == 1:
        check_visible(layout, facts, warnings)
    return EngineCommand(
        model=model,
        plan=Plan(
            engine=EngineRef(name="sglang", version=version),
            pools=(Pool(layout=layout, options=options, draft=draft),),
        ),
        unknown_flags=tuple(dict.fromkeys(settings.unknown)),
        warnings=tuple(warnings),
        facts=facts,
    )


def _version_of(image: str | None) -> str | None:
    """The version in the tag of the project's own image (``lmsysorg/sglang:v0.5.10-cu129``)."""
    match = re.search(r"(^|/)lmsysorg/sglang:v?(\d{1,4}\.\d{1,4}\.\d{1,4}(?:\.post\d{1,4})?)", image or "")
    return match.group(2) if match else None


def _extra(settings: FlagSettings, version: str | None) -> dict[str, Any]:
    """Options without a field; a flag that the version has not is left out, as its warning says."""
    at = table().at(version)
    return {
        name: setting.value
        for name, setting in settings.by_name.items()
        if setting.flag.field == "extra" and setting.flag.exists_at(at) and name != "disable-radix-cache"
    }


def _layout(settings: FlagSettings, extra: dict[str, Any], warnings: list[PlanWarning]) -> Layout:
    """``--tp-size`` counts all ranks of a stage: with attention data parallelism replicas take their ranks from it."""
    tp, pp = settings.value("tp-size") or 1, settings.value("pp-size") or 1
    dp, ep = settings.value("dp-size") or 1, settings.value("ep-size") or 1
    if (extra.pop("attn-dp-size", None) or 1) > 1 and dp == 1:
        dp = settings.value("attn-dp-size")
        extra["enable-dp-attention"] = True
    if (
        settings.value("enable-ep-moe")
        or extra.get("enable-deepep-moe")
        or extra.get("moe-a2a-backend") not in (None, "none")
    ):
        ep = tp
    if extra.get("enable-dp-attention") and dp > 1:
        if tp % dp:
            raise InputError(f"--dp-size {dp} does not divide --tp-size {tp}; attention replicas take whole ranks")
        tp //= dp
    elif extra.get("enable-dp-attention"):
        del extra["enable-dp-attention"]
    ranks = tp * dp if extra.get("enable-dp-attention") else tp
    if 1 < ep < ranks:
        message = f"--ep-size {ep} of {ranks} ranks: experts are counted whole, not cut by the ranks of one group"
        warnings.append(PlanWarning(code="approximate-experts", message=message))
    dcp = settings.value("dcp-size") or 1
    return Layout(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp)


def _draft(settings: FlagSettings, extra: dict[str, Any]) -> Draft | None:
    """The draft; ``tokens`` are the steps that it takes ahead. What a `Draft` does not hold stays in ``extra``."""
    given = {name: settings.value(f"speculative-{name}") for name in _DRAFT_FLAGS}
    algorithm = given["algorithm"]
    if algorithm is None:
        return None
    method = METHODS.get(str(algorithm).lower(), str(algorithm).lower())
    if method == "eagle" and given["draft-model-path"] is None:
        method = "mtp"
    steps = given["num-steps"]
    if steps is None:
        tokens = given["num-draft-tokens"]
        steps = max(tokens - 1, 1) if tokens is not None else _STEPS
    if given["eagle-topk"] not in (None, 1) or given["num-draft-tokens"] not in (None, steps + 1):
        extra |= {f"speculative-{n}": given[n] for n in ("eagle-topk", "num-draft-tokens") if given[n] is not None}
    return Draft(method=method, tokens=max(int(steps), 1), model=given["draft-model-path"])


def _options(settings: FlagSettings, extra: dict[str, Any]) -> ServeOptions:
    given = {
        setting.flag.field.partition(".")[2]: setting.value
        for setting in settings.by_name.values()
        if setting.flag.field.startswith("options.")
    }
    fraction = settings.by_name.get("mem-fraction-static")
    dtype = given.get("dtype")
    chunk = given.get("max_batched_tokens")
    if chunk is not None and chunk <= 0:
        extra["chunked-prefill-size"] = -1
        chunk = None
    sizes = given.get("cuda_graph_sizes")
    return ServeOptions(
        memory_fraction=None if fraction is None else share_of_card(float(fraction.value), shown=fraction.shown),
        context=given.get("context"),
        max_seqs=given.get("max_seqs"),
        max_batched_tokens=chunk,
        block_size=given.get("block_size"),
        dtype=None if dtype in (None, "auto") else _DTYPES.get(str(dtype), str(dtype)),
        kv_dtype=_named(given.get("kv_dtype")),
        quantization=_named(given.get("quantization")),
        eager=bool(given.get("eager")),
        prefix_caching=False if settings.value("disable-radix-cache") else None,
        cuda_graph_sizes=None if sizes is None else tuple(sizes),
        text_only=bool(given.get("text_only")),
        cpu_offload_bytes=int(float(given.get("cpu_offload_bytes") or 0) * GIB),
        extra=extra,
    )


def _named(value: str | None) -> str | None:
    return None if value is None or value in ("auto", "None", "") else value
