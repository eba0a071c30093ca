"""A trtllm-serve command and the YAML that it names to a plan; the file wins over the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.commands.bounded_yaml import load_all
from trilemma.commands.command_line import FlagSetting, FlagSettings, read_settings
from trilemma.commands.flag_words import parse_value
from trilemma.commands.named_files import text_of
from trilemma.engines.base import EngineCommand
from trilemma.engines.in_force import put_in_force, values_in_force
from trilemma.engines.launch import check_visible, named_model, share_of_card, take_apart
from trilemma.engines.tensorrt_llm.flags import keys, table
from trilemma.errors import InputError, shorten
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions

_METHODS = {"mtp": "mtp", "eagle": "eagle3", "eagle3": "eagle3", "drafttarget": "draft", "ngram": "ngram"}


def read(argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
    """The plan that a trtllm-serve command asks for.

    ``argv``: ``[NAME=value…] trtllm-serve [serve] MODEL flags…``; ``--config`` / ``--extra_llm_api_options`` is read with
    bounds. Unknown flags are named, not fatal. Raises `InputError` naming flag, value and remedy.
    """
    launch = take_apart([str(word) for word in argv], engine="tensorrt-llm", subcommands=("trtllm-serve", "serve"))
    version = version or _version_of(launch.image)
    words = launch.words[1:] if launch.words[:1] in (["serve"], ["trtllm-serve"]) else launch.words
    settings = read_settings(words, table(), config_flag=False)
    warnings = put_in_force(settings, table(), version)
    model = named_model(settings, warnings, engine="trtllm-serve", remedy="give trtllm-serve MODEL")
    extra = {name: one.value for name, one in settings.by_name.items() if one.flag.field == "extra"}
    named = settings.value("config")
    if named is not None:
        put = _overlay(_content(named), settings, extra)
        warnings += values_in_force(settings, put, table(), version)
    layout = _layout(settings, extra)
    facts = launch.facts(settings)
    check_visible(layout, facts, warnings)
    return EngineCommand(
        model=model,
        plan=Plan(
            engine=EngineRef(name="tensorrt-llm", version=version),
            pools=(Pool(layout=layout, options=_options(settings, extra), draft=_draft(extra)),),
        ),
        unknown_flags=tuple(dict.fromkeys(settings.unknown)),
        warnings=tuple(warnings),
        facts=facts,
    )


def _version_of(image: str | None) -> str | None:
    """The version in the tag of the maker's image (``nvcr.io/nvidia/tensorrt-llm/release:1.2.0``)."""
    match = re.search(r"tensorrt-llm/release:v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)", image or "")
    return match.group(1) if match else None


def _content(path: str) -> Mapping[str, Any]:
    documents = load_all(text_of(path), name=path)
    content = documents[0] if documents else {}
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise InputError(f"{shorten(path)} is not a mapping of options; write lines such as max_batch_size: 64")
    return content


def _overlay(content: Mapping[str, Any], settings: FlagSettings, extra: dict[str, Any]) -> list[str]:
    """Options of the file that a flag says too become settings, whose names are the answer; the others are kept as they are."""
    known, put = keys(), []
    for key, value in content.items():
        if isinstance(value, Mapping):
            rest = {}
            for inner, one in value.items():
                flag = known.get(f"{key}.{inner}")
                if flag is not None and one is not None:
                    _put(flag, one, f"{key}.{inner}", settings)
                    put.append(flag)
                else:
                    rest[str(inner)] = one
            if rest or not value:
                extra[str(key)] = rest
        elif (flag := known.get(str(key))) is not None and value is not None:
            if table().flags[flag].field == "extra":
                extra[flag] = value
            else:
                _put(flag, value, str(key), settings)
                put.append(flag)
        else:
            extra[str(key)] = value
    return list(dict.fromkeys(put))


def _put(name: str, value: Any, shown: str, settings: FlagSettings) -> None:
    flag = table().flags[name]
    text = str(value).lower() if isinstance(value, bool) else str(value)
    settings.by_name[name] = FlagSetting(flag=flag, value=parse_value(flag, text, shown=shown), shown=shown)


def _layout(settings: FlagSettings, extra: Mapping[str, Any]) -> Layout:
    """``tp_size`` counts all ranks of a stage; with attention data parallelism every rank attends on its own."""
    tp, pp = settings.value("tp-size") or 1, settings.value("pp-size") or 1
    ep, cp = settings.value("ep-size") or 1, settings.value("cp-size") or 1
    if extra.get("enable_attention_dp") and tp > 1:
        return Layout(tp=1, dp=tp, pp=pp, ep=ep, cp=cp)
    return Layout(tp=tp, pp=pp, ep=ep, cp=cp)


def _options(settings: FlagSettings, extra: dict[str, Any]) -> ServeOptions:
    fraction = settings.by_name.get("kv-cache-free-gpu-memory-fraction")
    inner = extra.get("kv_cache_config")
    cache = dict(inner) if isinstance(inner, Mapping) else {}
    block, reuse = cache.pop("tokens_per_block", None), cache.pop("enable_block_reuse", None)
    if cache.get("max_tokens") is not None:
        _whole(cache["max_tokens"], "kv_cache_config.max_tokens")
    if isinstance(inner, Mapping):
        extra["kv_cache_config"] = cache
        if not cache:
            del extra["kv_cache_config"]
    graphs = extra.get("cuda_graph_config", {})
    sizes: tuple[int, ...] | None = None
    if "cuda_graph_config" in extra and graphs is None:
        sizes = ()
        del extra["cuda_graph_config"]
    elif isinstance(graphs, Mapping) and graphs.get("batch_sizes"):
        sizes = tuple(_whole(size, "cuda_graph_config.batch_sizes") for size in list(graphs["batch_sizes"])[:8192])
    if isinstance(graphs, Mapping) and graphs.get("max_batch_size") is not None:
        _whole(graphs["max_batch_size"], "cuda_graph_config.max_batch_size")
    kv = settings.value("kv-cache-dtype")
    return ServeOptions(
        memory_fraction=None if fraction is None else share_of_card(float(fraction.value), shown=fraction.shown),
        context=settings.value("max-seq-len"),
        max_seqs=settings.value("max-batch-size"),
        max_batched_tokens=settings.value("max-num-tokens"),
        block_size=None if block is None else _whole(block, "kv_cache_config.tokens_per_block"),
        kv_dtype=None if kv in (None, "auto") else str(kv),
        prefix_caching=None if reuse is None else bool(reuse),
        chunked_prefill=settings.value("enable-chunked-prefill"),
        eager=sizes == (),
        cuda_graph_sizes=sizes or None,
        extra=extra,
    )


def _whole(value: Any, shown: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 2**24:
        raise InputError(f"{shown} {shorten(str(value))!r} is not a whole number of at least 1")
    return value


def _draft(extra: dict[str, Any]) -> Draft | None:
    """``speculative_config`` of the file: its kind, the tokens ahead and the draft's own model."""
    config = extra.get("speculative_config")
    if not isinstance(config, Mapping):
        return None
    kind = str(config.get("decoding_type", "")).lower().replace("_", "")
    tokens = config.get("num_nextn_predict_layers") or config.get("max_draft_len") or 1
    model = config.get("speculative_model_dir") or config.get("speculative_model")
    return Draft(
        method=_METHODS.get(kind, kind or "draft"),
        tokens=_whole(tokens, "speculative_config.max_draft_len"),
        model=None if model is None else str(model),
    )
