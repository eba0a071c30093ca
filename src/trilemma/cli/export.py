"""``trilemma export``: an estimate, or one plan of a search, into files and commands that the engine accepts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from trilemma.errors import InputError, UnknownName, shorten

if TYPE_CHECKING:
    from trilemma.engines.deployment import Fleet
    from trilemma.models.architecture import Model
    from trilemma.plans import Plan

_MOST_BYTES = 64 * 2**20
#: Where a plan is written for the engine that it was judged for.
_MANAGED = ("kubernetes", "llm-d")
_ESTIMATE, _PLANS = "trilemma/estimate@1", "trilemma/plans@1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("document", metavar="FILE.json", help="what fit, check or plan printed with --json")
    known = ", ".join((*_serving_targets(), *_frameworks()))
    parser.add_argument(
        "--to",
        required=True,
        metavar="TARGET",
        help=f"one of: {known}; kubernetes and llm-d write for the engine that the plan was judged for",
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder for the files; made when absent")
    parser.add_argument("--plan", type=int, default=1, metavar="N", help="which plan of a search, counted from 1")
    parser.add_argument("--force", action="store_true", help="overwrite files that differ")


def run(arguments: argparse.Namespace) -> int:
    """Writes the files and prints their paths."""
    known = (*_serving_targets(), *_frameworks())
    if arguments.to not in known:
        raise UnknownName("engine", arguments.to, known, hint=f"files are written for: {', '.join(known)}")
    estimate = _chosen(_document(arguments.document), arguments.plan, arguments.document)
    if _trains(estimate) != (arguments.to in _frameworks()):
        kind, wanted = ("training", _frameworks()) if _trains(estimate) else ("serving", _serving_targets())
        raise InputError(f"{shorten(arguments.document)} holds a {kind} plan; use --to {' or '.join(wanted)}")
    if _trains(estimate):
        from trilemma.cli.export_training import files

        contents = files(estimate, to=arguments.to, path=arguments.document)
    else:
        contents = _serving(estimate, arguments.document, arguments.to)
    for path in _write(contents, Path(arguments.output), force=arguments.force):
        print(path)
    if estimate.get("fits") is False:
        reason = shorten(str(estimate.get("reason") or "it does not fit"), most=200)
        print(f"trilemma: the plan written is not expected to start: {reason}", file=sys.stderr)
    return 0


def _serving_targets() -> tuple[str, ...]:
    from trilemma.engines.traits import those

    return (*those("deploys"), *_MANAGED)


def _frameworks() -> tuple[str, ...]:
    """Frameworks that files of training plans are written for."""
    from trilemma.plans.frameworks import those

    return those("writer")


def _trains(estimate: Mapping[str, Any]) -> bool:
    """Whether a document's plan is one of training: it names its implementation where serving plans have pools."""
    inputs = estimate.get("inputs")
    plan = inputs.get("plan") if isinstance(inputs, Mapping) else None
    return isinstance(plan, Mapping) and "implementation" in plan


def _document(path: str) -> Mapping[str, Any]:
    from trilemma.commands.bounded_yaml import read_text

    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        document = json.loads(read_text(Path(path), most_bytes=_MOST_BYTES), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{shorten(path)} is not a JSON document; give what fit or plan printed with --json"
        ) from error
    if not isinstance(document, Mapping) or document.get("schema") not in (_ESTIMATE, _PLANS):
        raise InputError(
            f"{shorten(path)} is neither {_ESTIMATE} nor {_PLANS}; give what fit or plan printed with --json"
        )
    return document


def _chosen(document: Mapping[str, Any], number: int, path: str) -> Mapping[str, Any]:
    plans = document.get("plans") if document["schema"] == _PLANS else [document]
    if not isinstance(plans, list) or not plans:
        raise InputError(f"{shorten(path)} holds no plans")
    if not 1 <= number <= len(plans):
        raise InputError(f"--plan {number} is out of range; {shorten(path)} holds plans 1 to {len(plans)}")
    chosen = plans[number - 1]
    if not isinstance(chosen, Mapping):
        raise InputError(f"{shorten(path)}: plan {number} is not an estimate")
    return chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class _Weights:
    """The model's word in the commands, and which checkpoint has to be made for it: the published one where None."""

    word: str
    published: str
    checkpoint: str | None = None

    @property
    def in_containers(self) -> str:
        """A checkpoint of one's own lies in a folder of every node, which containers mount."""
        from trilemma.engines.deployment.facts import facts

        if self.checkpoint is None:
            return self.word
        return f"{facts()['kubernetes']['checkpoints']}/{PurePosixPath(self.word).name}"


def _weights(inputs: Mapping[str, Any], path: str) -> _Weights:
    from trilemma.models.catalogue import served_id

    model = _object(inputs.get("model"), "inputs.model", path)
    name = model.get("name")
    if not isinstance(name, str):
        raise InputError(f"{shorten(path)}: inputs.model.name is not a model's name")
    named, checkpoint = (model.get(key) for key in ("served_as", "checkpoint"))
    if not isinstance(named, str | None) or not isinstance(checkpoint, str | None):
        raise InputError(f"{shorten(path)}: inputs.model.served_as and checkpoint are not words")
    published = served_id(name)
    return _Weights(word=named or published, published=published, checkpoint=checkpoint)


def _fleet(estimate: Mapping[str, Any], path: str, target: str, *, contained: bool = False) -> tuple[Fleet, str | None]:
    """The plan as processes of the engine that ``target`` names, and the engine it was made for where that is another one.

    ``contained`` fleets run in containers, which see other folders than this machine.
    """
    from trilemma.engines import canonical, deployer
    from trilemma.engines.translation import for_engine
    from trilemma.plans.document import plan_from_document

    inputs = _object(estimate.get("inputs"), "inputs", path)
    weights = _weights(inputs, path)
    plan = plan_from_document(_object(inputs.get("plan"), "inputs.plan", path))
    own = canonical(plan.engine.name)
    engine = own if target in _MANAGED else target
    if engine != own:
        _check_loads(engine, weights)
    version = _object(inputs.get("engine", {}), "inputs.engine", path).get("version")
    cluster = _object(inputs.get("cluster", {}), "inputs.cluster", path)
    per_node = cluster.get("gpus_per_node")
    whole = isinstance(per_node, int) and not isinstance(per_node, bool) and 0 < per_node <= 2**16
    translated = for_engine(plan, engine, **_for(estimate, plan))
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


def _serving(estimate: Mapping[str, Any], path: str, target: str) -> dict[str, str]:
    """All files of a serving plan for ``target``; what the reader must know goes to stderr."""
    from trilemma.engines.deployment import kubernetes, llm_d, llm_d_chart, scripts

    fleet, translated = _fleet(estimate, path, target, contained=target in _MANAGED)
    card = _card(estimate["inputs"].get("cluster", {}))
    contents: dict[str, str] = {}
    notes = list(fleet.notes)
    if target == "llm-d":
        contents = llm_d.files(fleet, card=card) | llm_d_chart.values(fleet)
    elif target == "kubernetes":
        contents = kubernetes.manifests(fleet, card=card)
    else:
        contents = scripts.host_files(fleet)
        try:
            contained, _ = _fleet(estimate, path, target, contained=True)
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
        contents |= _prediction(estimate, fleet, target)
    else:
        notes.append(f"the plan was judged for {translated}; judge what is written with trilemma check")
    weights = _weights(estimate["inputs"], path)
    if weights.checkpoint is not None:
        notes.append(
            f"the plan needs {shorten(weights.checkpoint, most=100)} of {shorten(weights.published)}: make or fetch it and put it"
            f" at {weights.word} for the scripts, at {weights.in_containers} of every node for containers"
        )
    for note in notes:
        print(f"trilemma: {note}", file=sys.stderr)
    return contents


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

    gguf = weights.word.endswith(".gguf")
    if weights.checkpoint is not None and gguf != (traits_of(engine).weights == "gguf"):
        raise InputError(
            f"{engine} does not load {shorten(weights.checkpoint, most=100)} ({shorten(weights.word)}); plan for it with"
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

    document = prediction_document(estimate, served_as=fleet.model)
    if document is None:
        return {}
    bench = bench_for(document["plan"]["engine"]["name"], model=fleet.model, **document["workload"])
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


def _object(value: Any, key: str, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{shorten(path)}: {key} is not an object; give what fit or plan printed with --json")
    return value


def _write(contents: Mapping[str, str], folder: Path, *, force: bool) -> list[Path]:
    """Writes all or nothing: files that would change are named first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = {folder / name: content for name, content in contents.items()}
        changed = [path.name for path, content in paths.items() if path.exists() and not _same(path, content)]
        if changed and not force:
            raise InputError(f"{shorten(str(folder))} holds other {', '.join(changed)}; give --force to overwrite")
        for path, content in paths.items():
            path.write_text(content, encoding="utf-8", newline="\n")
            if path.suffix == ".sh":
                path.chmod(0o755)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise InputError(f"-o {shorten(str(folder))} cannot be written: {reason}") from error
    return list(paths)


def _same(path: Path, content: str) -> bool:
    data = content.encode()
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
