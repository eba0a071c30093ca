"""What jobs of a cluster train, as options of ``trilemma train`` or as commands, and how fast that is where a job stands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from trilemma.commands.bounded_yaml import load_all
from trilemma.errors import InputError, UnknownName, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.outside_files import read_text
from trilemma.question import Question
from trilemma.simulation.cluster.jobs import ClusterJob, ticks
from trilemma.simulation.cluster.nodes import LEVELS, ClusterNode, levels_of
from trilemma.simulation.cluster.outcome import JobsEfficiency
from trilemma.simulation.cluster.placed_speed import JobPlace, PlacedSpeed, PlacementTiming, StatedTiming

#: Options of a training that the cluster states, not the training.
_OF_THE_CLUSTER = ("nodes", "gpus_per_node", "network", "oversubscription", "top", "models")
#: Options that settle a layout: without any of them the best plan is searched.
_LAYOUT = ("tp", "pp", "vpp", "dp", "ep", "cp", "zero", "micro_batch")
_MOST_TRAININGS, _MOST_SIZES = 1000, 4096
#: Groups of jobs whose best plan is searched, and how many times better it must be to be told.
_MOST_SEARCHED, _WORTH_TELLING = 6, 1.02


class PlaceTime(NamedTuple):
    """Seconds of an optimizer step, and the use of the cards, at one place."""

    step_s: float
    mfu: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFabric:
    """What joins the cards of a cluster: ``gpu`` names cards where nodes do not, ``network`` is the rate of one node, and
    ``oversubscription`` how many times narrower what a job crosses is, by the level that it spans."""

    nodes: tuple[ClusterNode, ...]
    gpu: str | None = None
    network: str | None = None
    oversubscription: Mapping[str, float] = field(default_factory=dict)
    models: str | None = None

    def accelerator(self, card: str) -> Accelerator:
        """The card of nodes that call it ``card``. Raises `InputError` where nobody knows it."""
        from trilemma.hardware.catalogue import find_measured

        name = card or self.gpu
        if not name:
            raise InputError("the nodes do not name their cards; give `gpu`, such as h100-sxm, or a column model")
        try:
            return find_measured(name)[0]
        except UnknownName:
            if card and self.gpu:
                return find_measured(self.gpu)[0]
            raise

    def cluster(self, place: JobPlace) -> Cluster:
        """The cards of a job as the estimator takes them: groups beside each other in nodes, a domain of the link as wide as
        groups that lie in one, the network of one card as of a whole node."""
        from trilemma.hardware.network import parse_network

        card = self.accelerator(place.card)
        if card.link is not None and card.link.domain > card.gpus_per_node and "nvlink" in levels_of(self.nodes):
            card = replace(card, link=replace(card.link, domain=place.linked) if place.linked > 1 else None)
        network = None
        if self.network is not None:
            network = parse_network(self.network) / max(one.gpus for one in self.nodes) * place.beside
        over = self.oversubscription.get(place.level, 1.0)
        return Cluster(
            accelerator=card, gpus=place.gpus, gpus_per_node=place.beside, network_bytes_per_s=network,
            oversubscription=over,
        )  # fmt: skip

    def nearest(self, gpus: int) -> JobPlace:
        """``gpus`` on whole nodes of the smallest domain that holds them, of the most usual card."""
        sized = max((one for one in self.nodes if one.gpus), key=lambda one: one.gpus)
        if gpus <= sized.gpus:
            return JobPlace(gpus, "node", gpus, gpus, sized.model)
        beside = math.gcd(gpus, sized.gpus)
        largest = {level: _largest(self.nodes, level) for level in levels_of(self.nodes)}
        level = next((one for one in LEVELS if largest.get(one, 0) >= gpus), "cluster")
        linked = gpus if level == "nvlink" else math.gcd(gpus, largest.get("nvlink", 0) or beside)
        return JobPlace(gpus, level, beside, linked, sized.model)


class EstimatedTraining:
    """One training on a cluster: its plan for a number of cards is settled once, then judged wherever they stand."""

    def __init__(self, name: str, options: Mapping[str, Any], command: str, fabric: ClusterFabric) -> None:
        self.name, self.options, self.command, self.fabric = name, dict(options), command, fabric
        self._questions: dict[int, Question[Any, Any]] = {}
        self._known: dict[JobPlace, PlaceTime] = {}

    def placed(self, place: JobPlace) -> PlacedSpeed:
        at, near = self.time(place), self.time(self.fabric.nearest(place.gpus))
        return PlacedSpeed(at.step_s / near.step_s, at.mfu)

    def nearest(self, gpus: int) -> PlacedSpeed:
        return PlacedSpeed(1.0, self.time(self.fabric.nearest(gpus)).mfu)

    def step_s(self, gpus: int) -> float:
        """Seconds of an optimizer step on ``gpus`` near to each other."""
        return self.time(self.fabric.nearest(gpus)).step_s

    def time(self, place: JobPlace) -> PlaceTime:
        """What the estimator says of one place."""
        found = self._known.get(place)
        if found is None:
            from trilemma.estimate.training import estimate_training

            question = replace(self.question(place.gpus), cluster=self.fabric.cluster(place))
            speed = estimate_training(question).speed
            assert speed is not None
            assert speed.step_s is not None
            assert speed.mfu is not None
            found = self._known[place] = PlaceTime(speed.step_s.interval.value, speed.mfu.value)
        return found

    def question(self, gpus: int) -> Question[Any, Any]:
        """The training on ``gpus`` as its plan settles it. Raises `InputError` where it has none."""
        if gpus not in self._questions:
            if len(self._questions) >= _MOST_SIZES:
                raise InputError(
                    f"training {shorten(self.name)} is asked for on more than {_MOST_SIZES} sizes; give fewer"
                )
            cluster = self.fabric.cluster(self.fabric.nearest(gpus))
            try:
                self._questions[gpus] = self._settled(cluster)
            except InputError as error:
                raise InputError(f"training {shorten(self.name, most=60)} on {gpus} GPUs: {error}") from None
        return self._questions[gpus]

    def best_plan(self, gpus: int) -> tuple[float, str] | None:
        """Use of the cards and layout of the best plan on ``gpus`` near to each other; None where none fits."""
        from trilemma.ask.training import search

        asked = self.question(gpus)
        near = self.fabric.cluster(self.fabric.nearest(gpus))
        from trilemma.ask.options import PLAN, settled
        from trilemma.ask.training_options import TRAINING

        kept = {name: value for name, value in self.options.items() if name in ("engine", "method", "rank", "targets")}
        found = search(asked.model, near, settled(PLAN, {"top": 1, **kept}, TRAINING), workload=asked.workload)
        speed = found.plans[0].speed if found.plans else None
        if speed is None or speed.mfu is None:
            return None
        layout = found.plans[0].question.plan.layout
        degrees = [(name, getattr(layout, name)) for name in ("tp", "pp", "vpp", "ep", "cp", "dp")]
        return speed.mfu.value, " ".join(f"{name.upper()}{many}" for name, many in degrees if many > 1) or "one card"

    def _settled(self, cluster: Cluster) -> Question[Any, Any]:
        if self.command:
            return _of_command(self.command, cluster, self.fabric.models)
        from trilemma.ask.options import FIT, PLAN, settled
        from trilemma.ask.training import search, training_question
        from trilemma.ask.training_options import TRAINING

        options = {**self.options, "models": self.fabric.models}
        model = options.pop("model")
        if any(name in options for name in _LAYOUT):
            return training_question(model, cluster, settled(FIT, options, TRAINING))
        found = search(model, cluster, settled(PLAN, {**options, "top": 1}, TRAINING), workload=None)
        if not found.plans:
            raise InputError("no plan fits; give it more GPUs, or state its layout")
        return found.plans[0].question


def _of_command(command: str, cluster: Cluster, models: str | None) -> Question[Any, Any]:
    from trilemma.ask.questions import check
    from trilemma.workloads import TrainingWorkload

    question = check(command, cluster, **({"models": models} if models else {})).question
    if not isinstance(question.workload, TrainingWorkload):
        raise InputError(f"{shorten(command, most=60)!r} serves; only trainings have a speed by their place")
    if question.cluster.gpus != cluster.gpus:
        raise InputError(
            f"its command uses {question.cluster.gpus} GPUs, the job asks for {cluster.gpus}; make them the same"
        )
    return question


def read_trainings(path: Path, fabric: ClusterFabric) -> dict[str, PlacementTiming]:
    """Trainings by name: options of ``trilemma train``, a ``command``, or measured ``pace`` by level and ``mfu``."""
    documents = load_all(read_text(path), name=path.name)
    stated = documents[0] if documents else None
    if len(documents) != 1 or not isinstance(stated, Mapping) or not 0 < len(stated) <= _MOST_TRAININGS:
        raise InputError(
            f"{path.name} states no trainings; give a mapping of 1 to {_MOST_TRAININGS:,} names to options of trilemma train"
        )
    return {str(name): _timing(str(name), one, fabric, path) for name, one in stated.items()}


def timings_of_commands(commands: Iterable[str], fabric: ClusterFabric) -> dict[str, PlacementTiming]:
    """Timings of the commands that jobs state: those that some framework reads."""
    return {one: EstimatedTraining(one, {}, one, fabric) for one in commands}


def with_better_plans(
    groups: Sequence[JobsEfficiency], timings: Mapping[str, PlacementTiming]
) -> tuple[JobsEfficiency, ...]:
    """``groups`` with the use that the best plan would make of their cards, for those with the most hours."""
    most = sorted(groups, key=lambda one: -one.gpu_hours)[:_MOST_SEARCHED]
    found = []
    for one in groups:
        timing = timings.get(one.training)
        best = timing.best_plan(int(one.gpus)) if one in most and isinstance(timing, EstimatedTraining) else None
        near = one.nearest_mfu
        if best is not None and near is not None and best[0] > near * _WORTH_TELLING:
            gain = one.gpu_hours * (1 - near / best[0])
            one = replace(one, best_mfu=best[0], best_layout=best[1], plan_gain_gpu_hours=gain)
        found.append(one)
    return tuple(found)


def with_work_of_steps(jobs: Sequence[ClusterJob], timings: Mapping[str, PlacementTiming]) -> list[ClusterJob]:
    """Jobs whose work is steps, with the time that these take where the cards are near to each other."""
    found = []
    for one in jobs:
        if one.work_ticks is None and one.steps is not None:
            timing = timings.get(one.training)
            if not isinstance(timing, EstimatedTraining):
                raise InputError(
                    f"{one.where}: job {shorten(one.name, most=40)} states steps of"
                    f" {shorten(one.training, most=40)!r}, which no training of `trainings` times; give a duration"
                )
            one = replace(one, work_ticks=ticks(one.steps * timing.step_s(int(one.shape.total_gpus))))
        found.append(one)
    return found


def _timing(name: str, stated: Any, fabric: ClusterFabric, path: Path) -> PlacementTiming:
    where = f"{path.name}: training {shorten(name, most=60)}"
    if not isinstance(stated, Mapping):
        raise InputError(f"{where} is no mapping of options; give such as model: llama-3.1-8b")
    options = {str(key).replace("-", "_"): value for key, value in stated.items()}
    if "pace" in options or ("mfu" in options and "model" not in options and "command" not in options):
        return _stated(options, where)
    for name_ in _OF_THE_CLUSTER:
        if name_ in options:
            raise InputError(f"{where}: `{name_}` is the cluster's to say; leave it out")
    if "command" in options:
        if len(options) > 1:
            raise InputError(f"{where}: a command says all; leave {', '.join(sorted(set(options) - {'command'}))} out")
        return EstimatedTraining(name, {}, str(options["command"]), fabric)
    if "model" not in options:
        raise InputError(f"{where} names no model; give model, train and global_batch, a command, or a measured pace")
    return EstimatedTraining(name, options, "", fabric)


def _stated(options: Mapping[str, Any], where: str) -> StatedTiming:
    pace, mfu = options.get("pace") or {}, options.get("mfu")
    if set(options) - {"pace", "mfu"} or not isinstance(pace, Mapping):
        raise InputError(f"{where}: a measured profile has pace (a mapping of levels) and mfu alone")
    known = ("node", *LEVELS, "cluster")
    for level, value in pace.items():
        if level not in known or not isinstance(value, int | float) or not 1 <= value <= 1000:
            raise InputError(
                f"{where}: pace {level}: {shorten(str(value))} is not a level of {', '.join(known)} with 1 or more"
            )
    if mfu is not None and (not isinstance(mfu, int | float) or not 0 < mfu <= 1):
        raise InputError(f"{where}: mfu {shorten(str(mfu))} is out of range; give a share above 0 up to 1")
    return StatedTiming(pace={str(level): float(value) for level, value in pace.items()}, mfu=mfu)


def _largest(nodes: Sequence[ClusterNode], level: str) -> int:
    sizes: dict[tuple[str, ...], int] = {}
    for one in nodes:
        if getattr(one, level):
            sizes[one.domain(level)] = sizes.get(one.domain(level), 0) + one.gpus
    return max(sizes.values(), default=0)
