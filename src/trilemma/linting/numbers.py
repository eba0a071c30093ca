"""Numbers of a script beside the catalogue: peaks that count sparsity, and batches of a rank taken for those of all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from trilemma.diagnosis.findings import Finding
from trilemma.hardware.catalogue import all_accelerators
from trilemma.linting.said import at
from trilemma.linting.script import Script

_OF_A_PEAK = re.compile(r"peak|flops|mfu|hfu|promised", re.IGNORECASE)
_SIXTEEN = re.compile(r"bf16|bfloat16|fp16|float16|half", re.IGNORECASE)
_NARROW = re.compile(r"fp8|float8|int8|fp4|e4m3|tf32|sparse|sparsity|2:4", re.IGNORECASE)
_NEAR = 0.004
_SPARSE_FROM = 8.0  # compute capability of the first units with 2:4 sparsity
_PER_RANK = (
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "train_micro_batch_size_per_gpu",
    "micro_batch_size",
)
_GLOBAL = re.compile(
    r"(?:^|_)(?:global|total|effective)_?(?:train_)?batch|(?:^|_)gbs$|batch_size_(?:global|total)", re.IGNORECASE
)


def findings(script: Script) -> Iterator[Finding]:
    yield from _sparse_peaks(script)
    yield from _confused_batches(script)


@cache
def _sparse() -> tuple[tuple[str, float, float], ...]:
    """(name, sparse peak, dense peak) of 16-bit products, in FLOP/s: twice the dense one from Ampere on."""
    found = []
    for part in all_accelerators():
        dense = part.peak_flops.get("bf16")
        if dense is None or (part.compute_capability or 0) < _SPARSE_FROM:
            continue
        stated = part.sparse_peak_flops.get("bf16")
        found += [
            (part.name, claim, dense.value) for claim in (stated.claims if stated is not None else (2 * dense.value,))
        ]
    return tuple(found)


@cache
def _dense() -> tuple[tuple[str, float], ...]:
    return tuple((part.name, part.peak_flops["bf16"].value) for part in all_accelerators() if "bf16" in part.peak_flops)


def _sparse_peaks(script: Script) -> Iterator[Finding]:
    """A literal that is some card's 16-bit peak with 2:4 sparsity, in an expression about peaks that says nothing of it."""
    for node in script.nodes:
        if (
            not isinstance(node, ast.Constant)
            or isinstance(node.value, bool)
            or not isinstance(node.value, int | float)
        ):
            continue
        flops, around = _flops_of(script, node), script.text(node)
        context = f"{around} {_names_around(script, node)}"
        if flops is None or not _OF_A_PEAK.search(context) or _NARROW.search(around):
            continue
        found = _card_of(flops, context)
        if found is None:
            continue
        yield at(
            script,
            node,
            "speed.sparse-peak",
            f"{flops / 1e12:,.0f} TFLOP/s is the 16-bit peak of {found[0]} with 2:4 sparsity, which training does not use",
            f"divide by the dense peak, {found[1] / 1e12:,.1f} TFLOP/s",
            effect="MFU comes out twice as high",
        )


def _card_of(flops: float, context: str) -> tuple[str, float] | None:
    """(card, its dense peak) whose sparse peak a number is: one that the context names, else any where it speaks of 16 bits
    and the number is no card's dense peak."""
    if any(abs(flops / dense - 1) < _NEAR and _says_card(context, name) for name, dense in _dense()):
        return None
    near = [(name, dense) for name, sparse, dense in _sparse() if abs(flops / sparse - 1) < _NEAR]
    named = next((one for one in near if _says_card(context, one[0])), None)
    if named is not None or not near:
        return named
    ambiguous = any(abs(flops / dense - 1) < _NEAR for _, dense in _dense())
    return near[0] if _SIXTEEN.search(context) and not ambiguous else None


def _flops_of(script: Script, node: ast.Constant) -> float | None:
    """The number with the power of ten that stands beside it: ``1979 * 1e12``, or a name that says TFLOPS."""
    value = float(node.value) if isinstance(node.value, int | float) and abs(node.value) < 1e30 else 0.0
    above = script.parents.get(node)
    if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Mult):
        other = above.right if above.left is node else above.left
        scale = (
            other.value
            if isinstance(other, ast.Constant)
            else 10**12
            if ast.unparse(other) in ("10 ** 12", "10.0 ** 12")
            else None
        )
        if isinstance(scale, int | float) and scale in (1e12, 1e9, 1e15):
            return value * scale
    if 1e14 < value < 1e17:
        return value
    return value * 1e12 if 100 < value < 20_000 else None


def _names_around(script: Script, node: ast.AST) -> str:
    """The names that an expression is bound to: targets, keywords, keys, the function."""
    names = []
    for depth, above in enumerate(script.up(node)):
        if depth > 6 or isinstance(above, ast.stmt):
            if isinstance(above, ast.Assign):
                names += [ast.unparse(target) for target in above.targets]
            elif isinstance(above, ast.AnnAssign | ast.AugAssign):
                names.append(ast.unparse(above.target))
            break
        if isinstance(above, ast.keyword) and above.arg:
            names.append(above.arg)
        if isinstance(above, ast.Dict):
            names += [
                ast.unparse(key)
                for key, value in zip(above.keys, above.values, strict=True)
                if key is not None and node in ast.walk(value)
            ]
    around = script.function_of(node)
    if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
        names.append(around.name)
    return " ".join(names)


def _says_card(text: str, name: str) -> bool:
    """Whether a text names a card: one of its words with a number, alone or written apart ("l40s", "l40-s")."""
    words = [word.lower() for word in name.split() if len(word) >= 3 and any(map(str.isdigit, word))]
    lower, joined = text.lower(), re.sub(r"(?<=\d)[-_ ](?=[a-z]\b)", "", text.lower())
    return any(re.search(rf"{re.escape(word)}(?![a-z0-9])", one) for word in words for one in (lower, joined))


def _confused_batches(script: Script) -> Iterator[Finding]:
    """A batch that is named as that of all ranks, given where each rank's own is asked."""
    spread = ("DistributedSampler", "init_process_group", "DistributedDataParallel")
    attributes = (node.attr for node in script.nodes if isinstance(node, ast.Attribute))
    distributed = any(name.rpartition(".")[2] in spread for name in (*script.names.values(), *attributes))
    for call in script.calls():
        for one in call.keywords:
            word = ast.unparse(one.value) if isinstance(one.value, ast.Name | ast.Attribute) else ""
            last = word.rpartition(".")[2]
            loads = (
                (script.imported(call.func) or "").endswith("DataLoader") and one.arg == "batch_size" and distributed
            )
            if not (one.arg in _PER_RANK or loads) or not _GLOBAL.search(last):
                continue
            yield at(
                script,
                one.value,
                "batch.global-per-rank",
                f"{word} is given as {one.arg}, which every rank takes for itself: the batch grows with the number of ranks",
                f"{one.arg}={last} // world_size (and by the steps of accumulation)",
                confidence="supported",
            )
