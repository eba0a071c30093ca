"""Precision plans for people and as JSON: formats by role, bytes, what is left of the budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trilemma.data.digest import made_by
from trilemma.models.catalogue import hub_id
from trilemma.models.parameters import by_role
from trilemma.models.published import published_as
from trilemma.precision.fitting import FittedChoice
from trilemma.precision.patterns import is_matrix
from trilemma.precision.plan import PlannedGroup, PrecisionPlan
from trilemma.quantities import GB, GIB, show_gib
from trilemma.report.document import estimate_document
from trilemma.report.tables import render_table
from trilemma.report.text import render_estimate
from trilemma.report.wrapping import wrapped

PLAN_SCHEMA = "trilemma/precision-plan@1"


def render_plan(
    plan: PrecisionPlan, *, choice: FittedChoice | None = None, explain: bool = False, width: int = 100
) -> str:
    """The plan by role, its bytes, the budget and, where it is served, the estimate."""
    title = f"{plan.model.name}: precision plan {plan.name}" + (f" ({plan.about})" if plan.about else "")
    parts = [*wrapped(title, width), "", *_by_role(plan, width).splitlines()]
    parts.append(
        f"weights {plan.weights_bytes / GB:,.2f} GB ({show_gib(plan.weights_bytes)} GiB, {plan.weights_bytes:,} bytes),"
        f" {plan.bits_per_parameter:.3f} bits per parameter"
    )
    parts += [f"{name:<16} {value}" for name, value in _lifetimes(plan)]
    if explain:
        parts += ["", *_explained(plan, width)]
    notes = [*_published(plan), *plan.notes]
    if choice is not None:
        parts += ["", *_budget(choice)]
        parts += ["", *_tried(choice, width)] if choice.tried else []
        notes += [*choice.fitted.obstacles, *choice.fitted.warnings]
    if notes:
        parts += ["", "to know", *(line for note in notes for line in _item(note, width))]
    if choice is not None:
        parts += ["", render_estimate(choice.fitted.estimate, explain=explain, width=width)]
    return "\n".join(line.rstrip() for line in parts)


def plan_document(plan: PrecisionPlan, *, choice: FittedChoice | None = None, explain: bool = False) -> dict[str, Any]:
    """``trilemma/precision-plan@1``; its ``plan`` can be given to ``precision plan --plan`` again."""
    document: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "made_by": made_by(),
        "model": plan.model.name,
        "name": plan.name,
        "weights_bytes": plan.weights_bytes,
        "bits_per_parameter": round(plan.bits_per_parameter, 6),
        "kv_cache": plan.kv_cache,
        "lifetimes": {name: value for name, value in plan.lifetimes.items() if value},
        "groups": [_group(one) for one in plan.groups],
        "others": {role: {"elements": elements, "bytes": n_bytes} for role, elements, n_bytes in _others(plan)},
        "plan": {
            "name": plan.name,
            "kv_cache": plan.kv_cache,
            "lifetimes": dict(plan.lifetimes),
            "rules": [*(rule.to_json() for rule in plan.rules), {"roles": ["*"], "weights": "own"}],
        },
        "notes": list(plan.notes),
    }
    if choice is not None:
        budget = choice.fitted.budget
        document |= {
            "fits": choice.fitted.fits,
            "budget": {
                "usable_bytes": budget.usable_bytes,
                "kv_cache_bytes": budget.cache_bytes,
                "overhead_bytes": budget.overhead_bytes,
                "left_for_weights_bytes": budget.left_bytes,
                "stated": budget.stated,
            },
            "tried": [{"plan": name, "why_not": why} for name, why in choice.tried],
            "obstacles": list(choice.fitted.obstacles),
            "warnings": list(choice.fitted.warnings),
            "estimate": estimate_document(choice.fitted.estimate, explain=explain),
        }
    return document


def _group(one: PlannedGroup) -> dict[str, Any]:
    group = one.group
    return {
        "name": group.name,
        "role": group.role,
        **({"layer": group.layer} if group.layer is not None else {}),
        "modules": list(one.modules),
        "weights": one.weights.name,
        "activations": one.activations.name,
        "elements": group.elements,
        "bytes": one.bytes,
    }


def _published(plan: PrecisionPlan) -> Iterator[str]:
    stored = published_as(plan.model, plan.checkpoint_scheme) if plan.checkpoint_scheme else None
    if stored is not None:
        yield f"published in this scheme, nothing to convert: huggingface.co/{hub_id(stored.name)}"


def _by_role(plan: PrecisionPlan, width: int) -> str:
    rows: dict[tuple[str, str, str], list[int]] = {}
    for one in plan.groups:
        for tensor in one.group.tensors:
            where = tensor.part if tensor.part in ("mtp", "vision") else one.group.role
            sums = rows.setdefault((where, tensor.format.name, one.activations.name), [0, 0, 0])
            sums[0] += 1
            sums[1] += tensor.elements
            sums[2] += tensor.bytes
    cells = [
        [role, weights, inputs, f"{count:,}", f"{elements:,}", f"{n_bytes / GB:,.3f}", f"{8 * n_bytes / elements:.3f}"]
        for (role, weights, inputs), (count, elements, n_bytes) in rows.items()
    ]
    cells += [
        [role, "as it is", "", "", f"{elements:,}", f"{n_bytes / GB:,.3f}", f"{8 * n_bytes / max(elements, 1):.3f}"]
        for role, elements, n_bytes in _others(plan)
    ]
    return render_table(
        ["tensors", "weights", "activations", "matrices", "parameters", "GB", "bits each"],
        cells,
        align="lllrrrr",
        width=width,
        yields=("matrices", "activations"),
    )


def _others(plan: PrecisionPlan) -> list[tuple[str, int, int]]:
    """Role, elements and bytes of what no plan quantises."""
    sums: dict[str, list[int]] = {}
    for tensor in plan.model.tensors:
        if not is_matrix(tensor) and tensor.part != "mtp":
            one = sums.setdefault(tensor.role, [0, 0])
            one[0] += tensor.elements
            one[1] += tensor.bytes
    return [(role, elements, n_bytes) for role, (elements, n_bytes) in sums.items()]


def _lifetimes(plan: PrecisionPlan) -> Iterator[tuple[str, str]]:
    yield "KV cache", plan.kv_cache
    for name, value in plan.lifetimes.items():
        if value:
            yield name.replace("_", " "), plan.model.dtype.name if value == "own" else value
    if plan.training_bytes_per_parameter:
        yield "training state", f"{plan.training_bytes_per_parameter:g} bytes per parameter beside the weights"


def _explained(plan: PrecisionPlan, width: int) -> Iterator[str]:
    yield "where the bytes come from: parameters x bits / 8, and what stands beside them"
    seen = {one.weights.name: one.weights for one in plan.groups}
    for fmt in seen.values():
        beside = (
            f"{fmt.scale_bits:g}-bit scale and {fmt.zero_point_bits:g}-bit zero point per {_unit(fmt)}"
            if fmt.scale_bits
            else "blocks that hold their own scales"
            if fmt.kind == "packed"
            else "nothing"
        )
        second = f", {fmt.superblock_bits:g} bits per {fmt.superblock} scales" if fmt.superblock else ""
        yield from wrapped(
            f"{fmt.name}: {fmt.bits:g} bits, beside them {beside}{second}",
            width,
            initial_indent="  ",
            subsequent_indent="    ",
        )
    if plan.source:
        yield f"  from {plan.source}"
    for number, rule in enumerate(plan.rules, 1):
        stated = rule.to_json()
        words = [
            f"{key} {', '.join(stated[key][:4])}{' …' if len(stated[key]) > 4 else ''}"
            for key in stated
            if isinstance(stated[key], list)
        ]
        yield from wrapped(
            f"rule {number}: {'; '.join(words)} → weights {rule.weights}, activations {rule.activations}",
            width,
            initial_indent="  ",
            subsequent_indent="    ",
        )
    total = by_role(plan.model)
    yield f"  {len(plan.model.tensors):,} tensors in {len(total)} roles, every one assigned"


def _unit(fmt: Any) -> str:
    match fmt.granularity:
        case "group" | "flat":
            return f"{fmt.group} elements"
        case "block":
            return f"block of {fmt.block[0]} x {fmt.block[1]}"
        case "channel":
            return "output row"
    return "tensor"


def _budget(choice: FittedChoice) -> Iterator[str]:
    fitted, budget = choice.fitted, choice.fitted.budget
    if budget.stated:
        taken = fitted.plan.weights_bytes
        below = " and no smaller plan is left to choose" if choice.tried and taken > budget.left_bytes else ""
        yield f"weights may take {budget.left_bytes / GIB:,.4g} GiB as asked; they take {show_gib(taken)} GiB{below}"
        return
    yield (
        f"per GPU {show_gib(budget.usable_bytes)} GiB engine budget − {show_gib(budget.cache_bytes)} KV cache"
        f" − {show_gib(budget.overhead_bytes)} overhead leave {budget.left_bytes / GIB:,.2f} GiB for weights;"
        f" this plan takes {show_gib(float(fitted.estimate.memory.ledger['weights'].bytes))}, the engine's tables included"
    )


def _tried(choice: FittedChoice, width: int) -> Iterator[str]:
    yield "tried first"
    for name, why in choice.tried:
        yield from wrapped(f"{name}: {why}", width, initial_indent="  - ", subsequent_indent="    ")


def _item(note: str, width: int) -> list[str]:
    return wrapped(note, width, initial_indent="  - ", subsequent_indent="    ")
