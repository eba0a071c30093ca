"""The part of ``trilemma export`` that writes serving plans."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from trilemma.ask.plan_documents import object_in
from trilemma.errors import InputError, shorten

if TYPE_CHECKING:
    from trilemma.engines.deployment import Fleet
    from trilemma.models.architecture import Model
    from trilemma.plans import Plan

#: Where a plan is written for the engine that it was judged for.
MANAGED = ("kubernetes", "llm-d")


def files(estimate: Mapping[str, Any], *, to: str, path: str) -> dict[str, str]:
    """All files of a serving plan for ``to``; what the reader must know goes to stderr."""
    from trilemma.engines.deployment import kubernetes, llm_d, llm_d_chart, scripts

    fleet, translated = _fleet(estimate, path, to, contained=to in MANAGED)
    card = _card(estimate["inputs"].get("cluster", {}))
    contents: dict[str, str] = {}
    notes = list(fleet.notes)
    if to == "llm-d":
        contents = llm_d.files(fleet, card=card) | llm_d_chart.values(fleet)
    elif to == "kubernetes":
        contents = kubernetes.manifests(fleet, card=card)
    else:
        contents = scripts.host_files(fleet)
        try:
            contained, _ = _fleet(estimate, path, to, contained=True)
            contents |= scripts.docker_files(contained)
            contents |= kubernetes.manifests(contained, card=card)
        except InputError as error:
            notes.append(error.flags)
        engines = sum(group.replicas for group in fleet.groups)
        if fleet.router is None and engines > 1:
            notes.append(
                f"{engines} engines listen on ports of their own: put an HTTP balancer on port {fleet.port} before them"
            )
    if translated is None:
        contents |= _prediction(estimate, fleet, to)
    else:
        notes.append(f"the plan was judged for {translated}; judge what is written with trilemma check")
    weights = _weights(estimate["inputs"], path)
    if weights.checkpoint is not None:
        notes.append(
            f"the plan needs {shorten(weights.checkpoint, most=100)} of {shorten(weights.published)}: make or fetch it and put it"
            f" at {weights.word} for the scripts"
            + ("" if fleet.unmanaged else f", at {weights.in_containers} of every node for containers")
        )
    for note in notes:
        print(f"trilemma: {note}", file=sys.stderr)
    return contents


@dataclass(frozen=True, kw_only=True, slots=True)
class _Weights:
    """The model's word in the commands, which checkpoint has to be made for it (the published one where None), and the method
    that its weights are quantised by (None: 16 bits)."""

    word: str
    published: str
    checkpoint: str | None = None
    method: str | None = None

    @property
    def in_containers(self) -> str:
        """A checkpoint of one's own lies in a folder of every node, which containers mount."""
        from trilemma.engines.deployment.facts import facts

        if self.checkpoint is None:
            return self.word
        return f"{facts()['kubernetes']['checkpoints']}/{PurePosixPath(self.word).name}"


def _weights(inputs: Mapping[str, Any], path: str) -> _Weights:
    from trilemma.models.catalogue import served_id

    model = object_in(inputs.get("model"), "inputs.model", path)
    name = model.get("name")
    if not isinstance(name, str):
        raise InputError(f"{shorten(path)}: inputs.model.name is not a model's name")
    named, checkpoint, method = (model.get(key) for key in ("served_as", "checkpoint", "quantization"))
    if any(not isinstance(one, str | None) for one in (named, checkpoint, method)):
        raise InputError(f"{shorten(path)}: inputs.model.served_as, checkpoint and quantization are not words")
    published = served_id(name)
    return _Weights(word=named or published, published=published, checkpoint=checkpoint, method=method)


def _fleet(estimate: Mapping[str, Any], path: str, target: str, *, contained: bool = False) -> tuple[Fleet, str | None]:
    """The plan as processes of the engine that ``target`` names, and the engine it was made for where that is another one.

    ``contained`` fleets run in containers, which see other folders than this machine.
    """
    from trilemma.engines import canonical, deployer
    from trilemma.engines.translation import for_engine
    from trilemma.plans.document import plan_from_document

    inputs = object_in(estimate.get("inputs"), "inputs", path)
    weights = _weights(inputs, path)
    plan = plan_from_document(object_in(inputs.get("plan"), "inputs.plan", path))
    own = canonical(plan.engine.name)
    engine = own if target in MANAGED else target
    version = object_in(inputs.get("engine", {}), "inputs.engine", path).get("version")
    cluster = object_in(inputs.get("cluster", {}), "inputs.cluster", path)
    per_node = cluster.get("gpus_per_node")
    whole = isinstance(per_node, int) and not isinstance(per_node, bool) and 0 < per_node <= 2**16
    translated = for_engine(plan, engine, **_for(estimate, plan))
    if engine != own:
        _check_loads(engine, weights)
    known = _known(inputs["model"], plan)
    fleet = deployer(engine)(
        model=weights.in_containers if contained else weights.word,
        plan=translated,
        version=version if isinstance(version, str) and own == engine else None,
        maker=_maker(cluster),
        per_node=per_node if whole else None,
        latent=None if known is None else any(mixer.is_latent for mixer in known.mixers),
    )
    if known is not None:
        _check_handover(known, translated, engine)
    return fleet, own if own != engine else None


def _known(model: Mapping[str, Any], plan: Plan) -> Model | None:
    """The model of pools apart, which decides how they hand caches over; None for one that is not known here."""
    from trilemma.models.resolve import load_model

    try:
        return load_model(model["name"]) if len(plan.pools) > 1 else None
    except InputError:
        return None


def _check_handover(model: Model, plan: Plan, engine: str) -> None:
    """Raises `InputError` for pools between which ``engine`` does not hand the caches of ``model`` over."""
    from trilemma.search.pool_rules import pairs_refused

    layouts = {pool.role: pool.layout for pool in plan.pools}
    prefill, decode = layouts["prefill"], layouts["decode"]
    for why, refused in pairs_refused(replace(plan.engine, name=engine), model, prefill, decode).items():
        if refused.any():
            sides = f"TP{prefill.tp} PP{prefill.pp} prefill and TP{decode.tp} PP{decode.pp} decode"
            raise InputError(f"{sides}: {why}; take another plan, or one layout for both pools")


def _check_loads(engine: str, weights: _Weights) -> None:
    """Raises `InputError` where another engine than the plan's does not load the weights that it was judged with."""
    from trilemma.engines import traits_of
    from trilemma.engines.loading import lies_in_gguf

    gguf = weights.word.endswith(".gguf")
    reads_gguf = traits_of(engine).weights == "gguf"
    made = weights.checkpoint is not None and gguf != reads_gguf
    if made or (reads_gguf and not lies_in_gguf(weights.method)):
        stored = weights.checkpoint if made and weights.checkpoint else f"weights in {weights.method}"
        raise InputError(
            f"{engine} does not load {shorten(stored, most=100)} ({shorten(weights.word)}); plan for it with"
            f" --engine {engine}"
        )


def _for(estimate: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """What a translation has to know of load and model."""
    from trilemma.measured.serving.deployment.prediction import in_flight

    inputs = estimate["inputs"]
    load, speed = inputs.get("workload"), estimate.get("speed")
    at_once = in_flight(load if isinstance(load, Mapping) else {}, speed if isinstance(speed, Mapping) else {}, plan)
    total, active = (inputs["model"].get(key) for key in ("parameters", "active_parameters"))
    return {"requests": at_once, "mixture": total != active}


def _prediction(estimate: Mapping[str, Any], fleet: Fleet, target: str) -> dict[str, str]:
    """What the plan is expected to do and the benchmark that tells, where the estimate states a load."""
    from trilemma.engines.deployment import benchmark
    from trilemma.measured.serving.deployment.prediction import FILE, bench_for, prediction_document

    asked_as = fleet.asked_as or fleet.model
    document = prediction_document(estimate, served_as=fleet.model, asked_as=asked_as)
    if document is None:
        return {}
    bench = bench_for(document["plan"]["engine"]["name"], model=asked_as, **document["workload"])
    contents = {FILE: json.dumps(document, indent=1, allow_nan=False) + "\n"}
    if target == "kubernetes":
        return contents | benchmark.on_kubernetes(fleet, bench.words, results=bench.results)
    return contents | benchmark.local(bench.words, results=bench.results, through_gateway=target == "llm-d")


def _maker(cluster: Mapping[str, Any]) -> str:
    """The first word of the accelerator's id; NVIDIA where the document does not say."""
    return (_card(cluster) or "nvidia").split("-", 1)[0].lower()


def _card(cluster: Mapping[str, Any]) -> str | None:
    """The accelerator's id as the document gives it."""
    accelerator = cluster.get("accelerator")
    name = accelerator.get("id") if isinstance(accelerator, Mapping) else accelerator
    return name if isinstance(name, str) and name else None
