"""What the layout of a training costs by a second estimate: weights gathered again, sharded across nodes, a network too slow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trilemma.diagnosis.expectation import Expectation
from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.training_log import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.diagnosis.rules.expected_training import tokens_per_s
from trilemma.estimate.estimate import Estimate
from trilemma.plans import Plan

#: A change has to save this share of the step to be worth telling.
_SAVES = 0.08
#: A step with a larger share of exposed communication is bound by it (deepspeedai/DeepSpeed issue 2928).
_BOUND = 0.4
_WIDER = 4.0


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        expectation = case.expectations.get(file)
        if expectation is None or isinstance(expectation.answer.question.plan, Plan):
            continue
        proof = (Evidence(file=file, line=next((one.line for one in part.events if one.name == "step"), None),
                          value=expectation.said),)  # fmt: skip
        if tokens_per_s(part.facts, expectation.answer) is not None:
            yield from _gathered(expectation, proof)
            yield from _across(expectation, proof)
            yield from _network(expectation, proof)


def _step_s(answer: Estimate | None) -> float | None:
    if answer is None or answer.speed is None or answer.speed.step_s is None:
        return None
    return answer.speed.step_s.interval.value


def _saved(expectation: Expectation, other: Estimate | None) -> tuple[float, float] | None:
    """(step as it is, step as it would be), where the change fits and saves enough."""
    now, then = _step_s(expectation.answer), _step_s(other)
    if now is None or then is None or other is None or not other.fits or then > (1 - _SAVES) * now:
        return None
    return now, then


def _gathered(expectation: Expectation, proof: tuple[Evidence, ...]) -> Iterator[Finding]:
    """ZeRO-3 gathers the weights anew for every micro-batch (marin-community/marin issue 6304: MFU 9.37 → 7.18 %)."""
    question = expectation.answer.question
    plan, load = question.plan, question.workload
    each = int(plan.micro_batch) * int(plan.layout.dp)
    times = load.global_batch // max(each, 1)
    if plan.zero < 3 or times < 2 or not plan.reshard:
        return
    saved = _saved(
        expectation,
        expectation.priced(replace(question, plan=replace(plan, micro_batch=int(plan.micro_batch) * times))),
    )
    words = f"one micro-batch of {int(plan.micro_batch) * times}"
    if saved is None:
        saved = _saved(expectation, expectation.priced(replace(question, plan=replace(plan, zero=2))))
        words = "state sharded without the weights (ZeRO-2)"
    if saved is None:
        return
    now, then = saved
    yield Finding(
        id="speed.gathered-again", role="root", severity="warning",
        claim=f"the weights are gathered anew for each of {times} micro-batches of a step: accumulating gradients under "
        "ZeRO-3 or FSDP "
        f"moves {times} times the bytes",
        evidence=proof, expected=f"a step of {then:.3g} s with {words}", observed=f"a step of {now:.3g} s by the estimate",
        confidence="supported", fix=f"{words}, or more recomputation in place of smaller micro-batches",
        predicted_effect=f"{now / then:.2f} times as fast",
    )  # fmt: skip


def _across(expectation: Expectation, proof: tuple[Evidence, ...]) -> Iterator[Finding]:
    """Weights sharded over all nodes cross the network three times a step (deepspeedai/DeepSpeed issues 6889, 7019)."""
    question = expectation.answer.question
    plan, cluster = question.plan, question.cluster
    if plan.zero < 3 or cluster.nodes < 2 or plan.shard_group is not None:
        return
    inside = replace(plan, shard_group=cluster.gpus_per_node)
    saved = _saved(expectation, expectation.priced(replace(question, plan=inside)))
    if saved is None:
        return
    now, then = saved
    yield Finding(
        id="speed.sharded-across-nodes", role="root", severity="warning",
        claim=f"the weights are sharded over {cluster.nodes} nodes: every layer of every pass is gathered over the network",
        evidence=proof, expected=f"a step of {then:.3g} s sharded inside a node",
        observed=f"a step of {now:.3g} s by the estimate",
        confidence="supported",
        fix=f"shard parameters inside a node and keep copies across: zero_hpz_partition_size={cluster.gpus_per_node} "
        "(ZeRO++), HSDP "
        f"(--shard-group {cluster.gpus_per_node})",
        predicted_effect=f"{now / then:.2f} times as fast",
    )  # fmt: skip


def _network(expectation: Expectation, proof: tuple[Evidence, ...]) -> Iterator[Finding]:
    """Exposed communication above two fifths of a step: what a wider network would give."""
    answer = expectation.answer
    question, speed = answer.question, answer.speed
    if speed is None or speed.comm_fraction is None or speed.comm_fraction.value < _BOUND or question.cluster.nodes < 2:
        return
    path = question.cluster.path(question.cluster.gpus)
    node = float(path.bytes_per_s.value) * question.cluster.gpus_per_node
    wider = replace(question.cluster, network_bytes_per_s=node * _WIDER)
    saved = _saved(expectation, expectation.priced(replace(question, cluster=wider)))
    effect = (
        ""
        if saved is None
        else f"{saved[0] / saved[1]:.2f} times as fast on {node * _WIDER * 8 / 1e9:,.0f} Gb/s a node"
    )
    yield Finding(
        id="speed.network-bound", role="root", severity="warning",
        claim=f"communication that nothing hides takes {speed.comm_fraction.value:.0%} of the step on {node * 8 / 1e9:,.0f} "
        "Gb/s a node",
        evidence=proof, expected=f"less than {_BOUND:.0%}", observed=f"{speed.comm_fraction.value:.0%} by the estimate",
        confidence="supported", fix="tensor and pipeline parallelism in place of ZeRO-3, sharding inside a node, or a wider "
        "network",
        predicted_effect=effect or None,
    )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
