"""The nouns of serving from what was given for them: words as on the command line, or the nouns themselves."""

from __future__ import annotations

import re
from dataclasses import replace
from os import PathLike
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trilemma.ask.options import fields_of
from trilemma.errors import InputError, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB, counted, parse_count
from trilemma.workloads import Serving, parse_lengths

if TYPE_CHECKING:
    from trilemma.search.precisions import WeightPrecision

#: Engines bound the tokens of a draft likewise.
MOST_DRAFTED = 4096
_COUNT = re.compile(r"(?:(\d{1,7})\s*[x×]\s*)?(.*)", re.IGNORECASE | re.DOTALL)
_ALONE = ("gpu", "1 gpu", "one gpu")
_DEGREE = re.compile(r"\s*(tp|pp|dp|ep)(\d{1,7})", re.IGNORECASE)


def model_of(given: Any, models: str | None = None) -> Model:
    """A model, or the one that a name, hub id or path means."""
    from trilemma.models.resolve import load_model

    return given if isinstance(given, Model) else load_model(words(given, "model"), models_dir=models)


def weights_of(
    given: Any, accelerator: Accelerator, *, precision: str | None, models: str | None, engine: Any = None
) -> WeightPrecision:
    """The model with its weights as published for ``engine``, or as ``precision`` asks for them."""
    from trilemma.search.precisions import precisions
    from trilemma.versions import DEFAULT_ENGINE

    name, assumed = engine_of(engine).name if engine is not None else DEFAULT_ENGINE, ""
    if precision is None:
        named = of_library(given, engine, models)
        if named is not None and ":" not in str(given):
            assumed = f"{given} is {named} in the library that {name} pulls from; `precision` names other weights, such as bf16"
        given = named or given
        precision = usual_mix(given, name, models) if named is None else None
        if precision is not None:
            assumed = f"weights in {precision}, as {name} gets models unless told; `precision` names others"
    found = precisions(model_of(given, models), accelerator, [precision or "as published"], engine=name)[0]
    if not assumed:
        return found
    return replace(found, model=replace(found.model, assumptions=(*found.model.assumptions, assumed)))


def of_library(given: Any, engine: Any, models: str | None = None) -> str | None:
    """The name, size and mix stated, by which the library of ``engine`` has ``given`` (``llama3.1:8b``, or ``llama-3.1-8b`` of
    the catalogue where it is the same model); None for other names."""
    from trilemma import engines

    if not isinstance(given, str) or engine is None:
        return None
    rules = engines.get(engines.canonical(engine_of(engine).name))
    spelled = rules.name_in_library(given) if _is_catalogued(given) else None
    if spelled is None:
        return rules.named_weights(given)
    named = rules.named_weights(spelled)
    try:
        there, here = (model_of(name, models) for name in (named, given))
    except InputError:
        return None
    same = sum(tensor.elements for tensor in there.tensors) == sum(tensor.elements for tensor in here.tensors)
    return named if same and here.quantization is None else None


def usual_mix(given: Any, engine: str, models: str | None) -> str | None:
    """The mix in which ``engine`` gets models of the catalogue that are published in 16 bits; None where it takes checkpoints."""
    from trilemma import engines

    mix = engines.traits_of(engine).usual_mix
    if not mix or not isinstance(given, str) or not _is_catalogued(given):
        return None
    return mix if model_of(given, models).quantization is None else None


def _is_catalogued(name: str) -> bool:
    """Whether ``name`` is neither a path, a repository of a hub nor a tag."""
    return not any(mark in name for mark in "/\\:") and not name.lower().endswith((".gguf", ".json", ".safetensors"))


def cluster_of(gpu: Any, options: SimpleNamespace, *, mixed: bool = False) -> Cluster:
    """The cluster that ``gpu`` names or is, in the shape that ``options`` give it; ``mixed``: of any kinds of cards."""
    from trilemma.hardware.mixed import parse_gpus

    if isinstance(gpu, Cluster):
        return surrounded(gpu, options)
    named = "the accelerator given" if isinstance(gpu, Accelerator) else words(gpu, "gpu")
    accelerator, gpus, cards = (gpu, 1, ()) if isinstance(gpu, Accelerator) else parse_gpus(named)
    nodes, gpus_per_node = options.nodes, options.gpus_per_node
    if cards and (not mixed or nodes or gpus_per_node):
        raise InputError(
            f"`gpu` {shorten(named)}: cards of several kinds are for trilemma fit and check, in one machine without `nodes`"
        )
    per_node = gpus_per_node or min(accelerator.gpus_per_node, gpus)
    if nodes:
        if gpus_per_node and nodes * gpus_per_node != gpus:
            raise InputError(f"`nodes` {nodes} x `gpus_per_node` {per_node} is not the {counted(gpus, 'GPU')} of `gpu`")
        if gpus % nodes:
            raise InputError(f"`nodes` {nodes} does not divide the {counted(gpus, 'GPU')} of `gpu`")
        per_node = gpus // nodes
    cluster = Cluster(accelerator=accelerator, gpus=gpus, gpus_per_node=gpus if cards else per_node, cards=cards)
    return surrounded(cluster, options)


def surrounded(cluster: Cluster, options: SimpleNamespace) -> Cluster:
    """``cluster`` with the host, its memory and the network that ``options`` state."""
    from trilemma.hardware.hosts import Host, parse_host
    from trilemma.hardware.network import on_network

    host, memory = getattr(options, "host", None), getattr(options, "host_memory", None)
    if host is not None:
        cluster = replace(cluster, host=host if isinstance(host, Host) else parse_host(str(host)))
    if memory is not None:
        cluster = replace(cluster, host_memory_bytes=memory * GIB)
    cap = getattr(options, "power_cap", None)
    if cap is not None:
        cluster = replace(cluster, power_cap_w=cap)
    return on_network(cluster, options.network, options.oversubscription)


def storage_rate(words: str) -> float:
    """Bytes a second of ``2GB/s``."""
    from trilemma.hardware.network import parse_network

    try:
        return parse_network(words)
    except InputError:
        raise InputError(f"`storage` {shorten(words)!r} is not a rate; give one such as 100GB/s") from None


def workload_of(options: SimpleNamespace) -> Serving:
    """The load of the options; ``serve`` states both lengths."""
    stated = fields_of("load", options)
    if getattr(options, "serve", None) is not None:
        isl, osl = parse_lengths(options.serve)
        if options.context is not None and options.context < isl + osl:
            raise InputError(
                f"`context` {options.context} is shorter than the {isl + osl} tokens of `serve` {options.serve}"
            )
        stated |= {"isl": isl, "osl": osl}
    return Serving(**stated)


def engine_of(given: Any) -> EngineRef:
    """``vllm`` or ``vllm@0.21.0``."""
    if isinstance(given, EngineRef):
        return given
    name, _, version = words(given, "engine").partition("@")
    return EngineRef(name=name, version=version or None)


def draft_of(given: Any) -> Draft:
    """``mtp``, ``mtp:3`` or ``mtp:3:0.8``: method, drafted tokens, and accepted over drafted as engines print it."""
    if isinstance(given, Draft):
        return given
    text = words(given, "draft")
    method, _, rest = text.partition(":")
    tokens, _, share = rest.partition(":")
    try:
        acceptance = float(share) if share else None
    except ValueError:
        acceptance = -1.0
    if acceptance is not None and not 0 <= acceptance <= 1:
        raise InputError(f"`draft` {text[:80]!r}: accepted over drafted is a number from 0 to 1")
    count = parse_count(tokens, what="`draft` tokens") if tokens else 1
    if not 1 <= count <= MOST_DRAFTED:
        raise InputError(f"`draft` {text[:80]!r}: a step drafts from 1 to {MOST_DRAFTED} tokens")
    return Draft(method=method, tokens=count, acceptance=acceptance)


def plan_of(options: SimpleNamespace, *, gpus: int, context: int | None, quantization: str | None = None) -> Plan:
    """A plan of one engine from layout and engine options; tp takes the GPUs that pp and dp leave.

    Engines that give cards layers in turn unless told otherwise have pp take them all.
    """
    from trilemma.engines import traits_of

    engine = engine_of(options.engine)
    in_turn = traits_of(engine.name).in_turn and options.tp is None and options.dp is None
    pp, dp = options.pp or (gpus if in_turn else 1), options.dp or 1
    if options.tp is None and gpus % (pp * dp):
        raise InputError(f"`pp` {pp} x `dp` {dp} does not divide the {counted(gpus, 'GPU')} of `gpu`")
    tp = options.tp or gpus // (pp * dp)
    if tp * pp * dp != gpus:
        raise InputError(
            f"`tp` {tp} x `pp` {pp} x `dp` {dp} is {counted(tp * pp * dp, 'GPU')}, but `gpu` names {gpus}; name as many, or"
            " give other sizes"
        )
    serving = ServeOptions(
        **fields_of("engine", options), context=context, kv_dtype=options.kv_dtype, quantization=quantization
    )
    layout = Layout(tp=tp, pp=pp, dp=dp, ep=tp * dp if options.ep else 1, dcp=options.dcp or 1)
    draft = draft_of(options.draft) if options.draft else None
    return Plan(engine=engine, pools=(Pool(layout=layout, options=serving, draft=draft),))


def engines_of(
    gpu: Any, options: SimpleNamespace, cluster: Cluster, *, context: int | None, quantization: str | None
) -> tuple[Plan, Cluster]:
    """The plan that the options name, of engines side by side or of two pools, and the cards that it runs on: those of
    ``gpu``, or, where it counts none, as many as the pools take."""
    if options.prefill is None and options.decode is None:
        return _side_by_side(options, cluster, context=context, quantization=quantization), cluster
    _check_pools(options)
    like = plan_of(options, gpus=cluster.gpus, context=context, quantization=quantization)
    prefill = replace(pool_of(options.prefill, "prefill", like.pool), role="prefill", draft=None)
    decode = replace(pool_of(options.decode, "decode", like.pool), role="decode")
    plan = replace(like, pools=(prefill, decode))
    if counts(gpu):
        return plan, cluster
    return plan, cluster_of(f"{gpu}:{plan.gpus}", options)


def pool_of(given: Any, name: str, like: Pool) -> Pool:
    """``2xTP2``, ``TP4 PP2``, ``3xTP1DP8EP8`` or ``4 × 1 GPU``: so many engines of this layout, with the options of ``like``."""
    if isinstance(given, Pool):
        return given
    text = words(given, name)
    count, layout = _COUNT.fullmatch(text).groups()  # type: ignore[union-attr]
    degrees: dict[str, int] = {}
    if layout.strip().lower() in _ALONE:
        layout = "TP1"
    at = 0
    while (found := _DEGREE.match(layout, at)) is not None:
        degree = found[1].lower()
        if degree in degrees:
            raise InputError(f"`{name}` {shorten(text)!r} gives {found[1]} twice")
        degrees[degree], at = int(found[2]), found.end()
    if not degrees or layout[at:].strip():
        raise InputError(
            f"`{name}` {shorten(text)!r} is not a number of engines and their layout, such as 2xTP2 or TP4PP2"
        )
    whole = degrees.get("tp", 1) * degrees.get("dp", 1)
    if degrees.get("ep", 1) not in (1, whole):
        raise InputError(
            f"`{name}` {shorten(text)!r}: experts are spread over all of tp x dp; give EP{whole} or leave it out"
        )
    return replace(like, layout=Layout(**degrees), replicas=1 if count is None else int(count))


def counts(gpu: Any) -> bool:
    """Whether ``gpu`` says how many GPUs there are."""
    from trilemma.hardware.gpu_argument import states_count

    return isinstance(gpu, Cluster) or (isinstance(gpu, str) and states_count(gpu))


def _check_pools(options: SimpleNamespace) -> None:
    if options.prefill is None or options.decode is None:
        lacking = "prefill" if options.prefill is None else "decode"
        raise InputError(
            f"`{lacking}` is missing: pools apart are two, such as `prefill` 2xTP2 `decode` 1xTP4"
        )  # fmt: skip
    for name in ("replicas", "tp", "pp", "dp", "dcp", "ep"):
        if getattr(options, name):
            raise InputError(f"`{name}` is of a plan without pools; state layouts in `prefill` and `decode`")


def _side_by_side(options: SimpleNamespace, cluster: Cluster, *, context: int | None, quantization: str | None) -> Plan:
    replicas = options.replicas or 1
    if cluster.gpus % replicas:
        raise InputError(f"`replicas` {replicas} does not divide the {counted(cluster.gpus, 'GPU')} of `gpu`")
    plan = plan_of(options, gpus=cluster.gpus // replicas, context=context, quantization=quantization)
    return replace(plan, pools=(replace(plan.pool, replicas=replicas),))


def words(given: Any, name: str) -> str:
    """Text, or a path as text."""
    if isinstance(given, str | PathLike):
        return str(given)
    raise InputError(f"`{name}` {shorten(repr(given))} is neither text nor a noun of its kind")
