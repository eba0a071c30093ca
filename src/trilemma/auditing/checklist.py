"""The items of the checklist: each asks the plan, the records and what was stated, and says what would tell where none does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trilemma.auditing.saving import Saving, saving_verdict
from trilemma.columns import column
from trilemma.data.files import read_data
from trilemma.diagnosis.findings import Event, Finding, Part
from trilemma.diagnosis.judging import Diagnosis
from trilemma.diagnosis.rules.expected_training import tokens_per_s
from trilemma.estimate.estimate import Estimate
from trilemma.plans import Plan

State = Literal["pass", "fail", "unknown"]

#: Kinds of records that state why clocks are held down.
_SAY_REASONS = ("nvidia-smi-xml", "nvidia-smi-q")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditItem:
    """One item: its state, what shows it (or, where it is unknown, what would), and the remedy of a fail."""

    item: str
    state: State
    evidence: str
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """The checklist worked through; ``findings`` are those of the records that failed items rest on."""

    schema: str = "trilemma/audit@1"
    plan: str = ""
    items: tuple[AuditItem, ...] = field(metadata=column(keep="empty"))
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        """No item failed; what is unknown is no fail."""
        return all(item.state != "fail" for item in self.items)


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the checklist is worked through with: the plan's answer, the records, documents of gates, what was stated."""

    answer: Estimate | None
    diagnosis: Diagnosis
    gates: Sequence[Mapping[str, Any]] = ()
    loader_samples_per_s: float | None = None
    saving: Saving = field(default_factory=Saving)

    @property
    def trains(self) -> bool:
        return self.answer is None or not isinstance(self.answer.question.plan, Plan)

    def parts(self, kind: str) -> Iterator[Part]:
        return (part for one in self.diagnosis.files for part in one.parts if part.kind == kind)

    def found(self, *prefixes: str) -> tuple[Finding, ...]:
        return tuple(
            one for one in self.diagnosis.findings if one.id.startswith(prefixes) and one.severity != "context"
        )

    def gpus(self) -> Iterator[Event]:
        """GPUs in records that state the reasons for which clocks are held down."""
        for one in self.diagnosis.files:
            for part in one.parts:
                if part.kind in _SAY_REASONS:
                    yield from (event for event in part.events if event.name == "gpu" and "slowed_by" in event.values)


def audited(known: Known) -> Audit:
    """Every item that applies to the plan; items of training alone are left out for serving."""
    items, used = [], []
    for judge, training in _ITEMS:
        if training and not known.trains:
            continue
        item, findings = judge(known)
        items.append(item)
        used += [one for one in findings if one not in used]
    plan = "" if known.answer is None else known.answer.summary
    return Audit(plan=plan, items=tuple(items), findings=tuple(used))


Judged = tuple[AuditItem, Sequence[Finding]]


def _item(
    name: str, state: State, evidence: str, remedy: str | None = None, findings: Sequence[Finding] = ()
) -> Judged:
    return AuditItem(item=name, state=state, evidence=evidence, remedy=remedy), findings


def _limit(name: str) -> float:
    return float(read_data("audit.toml")[name])


def _failed(name: str, findings: Sequence[Finding]) -> Judged:
    return _item(name, "fail", "; ".join(one.claim for one in findings[:3]), findings[0].fix, findings)


def _links(known: Known) -> Judged:
    name = "links complete"
    if findings := known.found("links.", "gpu.links-down", "gpu.not-listed", "switch."):
        return _failed(name, findings)
    seen = [part for kind in ("nvidia-smi-topology", "nvidia-smi-nvlink") for part in known.parts(kind)]
    if not seen:
        return _item(name, "unknown", "nvidia-smi topo -m and nvlink --status would tell")
    told = []
    for part in seen:
        ways = part.facts.get("between_gpus")
        told.append(f"{', '.join(ways)} between GPUs" if ways else f"{part.facts.get('links', 0)} links up")
    return _item(name, "pass", "; ".join(dict.fromkeys(told)))


def _collectives(known: Known) -> Judged:
    name = "collectives reach 80 % of the fabric"
    if findings := known.found("collectives.", "network."):
        return _failed(name, findings)
    rates = [part.facts["peak_busbw_gb_s"] for part in known.parts("nccl-tests") if "peak_busbw_gb_s" in part.facts]
    lacking = next((one for one in known.diagnosis.missing if "nccl-tests" in one or "fabric" in one), None)
    if not rates or lacking is not None:
        return _item(name, "unknown", lacking or "all_reduce_perf -b 8 -e 1G of nccl-tests, on these cards, would tell")
    return _item(name, "pass", f"{max(rates):.4g} GB/s of bus bandwidth, within what this fabric gives")


def _tensor_domain(known: Known) -> Judged:
    name = "tensor parallelism inside the fast domain"
    if known.answer is None:
        return _item(name, "unknown", "the plan (a command or a document) would tell")
    question = known.answer.question
    layout = question.plan.pool.layout if isinstance(question.plan, Plan) else question.plan.layout
    tp = int(layout.tp)
    if tp == 1:
        return _item(name, "pass", "TP 1: nothing crosses")
    path: Any = question.cluster.path(tp)
    if path.kind == "link":
        return _item(name, "pass", f"TP {tp} over {path.name}")
    card = question.cluster.accelerator
    whole = card.link.domain if card.link is not None else 1
    remedy = (
        f"TP of at most {whole}, the rest as pipeline or data parallelism"
        if whole > 1
        else "pipeline or data parallelism"
    )
    return _item(name, "fail", f"TP {tp} crosses {path.name}", remedy)


def _bubble(known: Known) -> Judged:
    name = "pipeline bubble below 10 %"
    speed = None if known.answer is None else known.answer.speed
    if speed is None or speed.bubble_fraction is None:
        return _item(name, "unknown", "the training plan (a command or a document) would tell")
    share, most = speed.bubble_fraction.value, _limit("bubble_most")
    if share < most:
        return _item(name, "pass", f"{share:.1%} of a step")
    return _item(name, "fail", f"{share:.1%} of a step", "more micro-batches a step, or interleaved stages")


def _loader(known: Known) -> Judged:
    name = "loader at three times the consumption"
    if findings := known.found("training.data-bound"):
        return _failed(name, findings)
    consumed = _samples_per_s(known)
    if known.loader_samples_per_s is not None and consumed is not None:
        times, least = known.loader_samples_per_s / consumed, _limit("loader_least")
        told = f"{known.loader_samples_per_s:,.4g} of {consumed:,.4g} samples a second: {times:.1f} times"
        if times >= least:
            return _item(name, "pass", told)
        return _item(name, "fail", told, "more workers and prefetching, a faster store, samples packed ahead")
    for part in known.parts("training-log"):
        wait, step = part.facts.get("median_data_s"), part.facts.get("median_step_ms")
        if wait and step and wait * 1e3 / step > _limit("data_wait_most"):
            told = f"{wait * 1e3 / step:.0%} of a step waits for data"
            return _item(name, "fail", told, "more workers and prefetching, a faster store, samples packed ahead")
    return _item(name, "unknown", "--loader SAMPLES_PER_S, the loader alone over a few hundred batches, would tell")


def _samples_per_s(known: Known) -> float | None:
    """What the run takes: as its log says, else as its plan should."""
    if known.answer is None or known.answer.speed is None or known.answer.speed.step_s is None:
        return None
    load: Any = known.answer.question.workload
    for part in known.parts("training-log"):
        rate = tokens_per_s(part.facts, known.answer)
        if rate is not None:
            return float(rate * known.answer.question.cluster.gpus / load.seq)
    return float(load.global_batch / known.answer.speed.step_s.interval.value)


def _low_precision(known: Known) -> Judged:
    name = "low precision gated by convergence"
    outcomes = [one.get("outcome") for one in known.gates]
    if "fail" in outcomes:
        worst = next(one for one in known.gates if one.get("outcome") == "fail")
        return _item(
            name, "fail", f"the gate failed: {worst.get('reason', '')}"[:200], "keep the reference's precision"
        )
    if known.answer is None:
        return _item(name, "unknown", "the plan (a command or a document) would tell")
    recipe: Any = known.answer.question.plan
    recipe = recipe.recipe
    if recipe.matmul == "same":
        return _item(name, "pass", f"{recipe.name}: products in 16 bits or more, nothing to gate")
    if "pass" in outcomes:
        return _item(name, "pass", f"{recipe.name}: the gate passed")
    return _item(
        name,
        "unknown",
        f"{recipe.name} is not gated: trilemma precision gate REFERENCE.jsonl RUN.jsonl --json would tell",
    )


def _saving(known: Known) -> Judged:
    name = "checkpoints asynchronous, at a sensible interval"
    state, evidence, remedy = saving_verdict(known.answer, known.saving)
    return _item(name, state, evidence, remedy)


def _throttling(known: Known) -> Judged:
    name = "no throttling"
    if findings := known.found("gpu.clocks-held-down", "gpu.slow-clock"):
        return _failed(name, findings)
    seen = list(known.gpus())
    if not seen:
        return _item(name, "unknown", "nvidia-smi -q -x while it runs would tell")
    if all(gpu.values["busy"] == 0 for gpu in seen):
        return _item(name, "unknown", "the records are of idle GPUs; nvidia-smi -q -x while it runs would tell")
    hottest = max((gpu.values["temperature_c"] or 0 for gpu in seen), default=0)
    return _item(
        name,
        "pass",
        f"no reason to slow down on {len(seen)} records of GPUs" + (f", {hottest:g} °C at most" if hottest else ""),
    )


def _throughput(known: Known) -> Judged:
    name = "measured speed as expected"
    speed = None if known.answer is None else known.answer.speed
    rates = [
        rate for part in known.parts("training-log") if known.answer is not None
        and (rate := tokens_per_s(part.facts, known.answer)) is not None
    ]  # fmt: skip
    if known.answer is None or speed is None or speed.tokens_per_s_per_gpu is None or not rates:
        return _item(name, "unknown", "a training log, or --tokens-per-s, beside the plan would tell")
    rate, expected = rates[0], speed.tokens_per_s_per_gpu
    told = f"{rate:,.4g} tokens a second and GPU, expected {expected.value:,.4g} ({expected.low:,.4g} – {expected.high:,.4g})"
    for word, figure in (("MFU", speed.mfu), ("HFU", speed.hfu)):
        if figure is not None:
            told += f"; {word} {figure.value * rate / expected.value:.1%} of an expected {figure.value:.1%}"
    findings = known.found("training.throughput")
    if speed.mfu is not None and speed.mfu.value * rate > expected.value:
        beyond = "; no card exceeds its peak: the rate is not in tokens over all GPUs, or the plan is not this run's"
        return _item(name, "unknown", told + beyond)
    if rate >= expected.low:
        return _item(name, "pass", told)
    gap = f"; {findings[0].claim}" if findings else f"; largest parts of a step: {_largest(speed.lines)}"
    return _item(name, "fail", told + gap, findings[0].fix if findings else None, findings)


def _largest(lines: Mapping[str, float]) -> str:
    ranked = sorted(lines.items(), key=lambda one: -one[1])[:4]
    return ", ".join(f"{name.replace('_', ' ')} {seconds:.3g} s" for name, seconds in ranked)


#: (item, of training alone).
_ITEMS: tuple[tuple[Callable[[Known], Judged], bool], ...] = (
    (_links, False), (_collectives, False), (_tensor_domain, False), (_bubble, True), (_loader, True), (_low_precision, True),
    (_saving, True), (_throttling, False), (_throughput, True),
)  # fmt: skip
