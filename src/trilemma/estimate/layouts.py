"""Which layouts an engine accepts for a model: the rules, and the sentence for the one that is broken.

The same rules serve one plan, whose violation is an error, and a table of plans, whose violations are counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trilemma.errors import InputError
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.plans import Layout
from trilemma.quantities import counted


def violations(model: Model, layout: Layout) -> Mapping[str, np.ndarray]:
    """For each rule, named by what it asks, whether each plan of ``layout`` breaks it (broadcast over its arrays).

    Tensor parallelism must divide the query heads, and KV heads must divide it or be divided by it (vLLM
    ``ModelConfig.verify_with_parallel_config``); linear-attention heads likewise; a stage needs a layer; decode context
    parallelism divides the ranks that would hold the same KV heads.
    """
    tp, pp, ep, dcp = (np.asarray(value) for value in (layout.tp, layout.pp, layout.ep, layout.dcp))
    broken: dict[str, np.ndarray] = {}
    heads = {mixer.heads for mixer in model.mixers if not mixer.keeps_state}
    for count in sorted(heads):
        broken[f"tp does not divide the {count} attention heads"] = count % tp != 0
    kv_heads = {mixer.cache_heads for mixer in model.mixers if mixer.cache_heads is not None}
    for count in sorted(kv_heads):
        broken[f"tp and the {count} KV heads do not divide each other"] = (count % tp != 0) & (tp % count != 0)
    states = {count for mixer in model.mixers for count in mixer.state_heads}
    for count in sorted(states):
        broken[f"tp does not divide the {count} linear-attention heads"] = (count % tp != 0) & (tp % count != 0)
    broken[f"more pipeline stages than the {counted(len(model.layers), 'layer')}"] = pp > len(model.layers)
    experts = max((layer.ffn.experts for layer in model.layers if isinstance(layer.ffn, ExpertFfn)), default=0)
    if experts:
        broken[f"more expert-parallel ranks than the {experts} experts"] = ep > experts
    else:
        broken["expert parallelism without experts"] = ep > 1
    broken |= _cut_scales(model, layout)
    least_kv = min(kv_heads, default=1)
    broken["dcp does not divide the ranks that share KV heads"] = (dcp > 1) & (np.maximum(tp // least_kv, 1) % dcp != 0)
    return broken


def _cut_scales(model: Model, layout: Layout) -> dict[str, np.ndarray]:
    """Whether a cut of feed-forward columns falls inside a block or group of elements that share a scale.

    vLLM refuses it: ``validate_fp8_block_shape`` and ``Fp8MoEMethod.create_weights`` for blocks,
    ``verify_marlin_supports_shape`` for groups. Experts are cut by tp · dp unless they are spread whole; MXFP4 experts are
    padded.
    """
    tp, dp, ep = (np.asarray(value) for value in (layout.tp, layout.dp, layout.ep))
    broken: dict[str, np.ndarray] = {}
    for tensor in model.of_part("layers"):
        form = tensor.format
        size = form.block[0] if form.granularity == "block" else form.group if form.granularity == "group" else 0
        if tensor.shard != "row" or size < 2 or form.name.startswith("mx") or not tensor.role.endswith("down"):
            continue
        ways = np.where(ep > 1, 1, tp * dp) if tensor.experts else tp
        columns = tensor.shape[-1]
        broken[f"tp cuts {columns} columns inside blocks of {size} ({form.name}, {tensor.role})"] = (
            columns % (ways * size)
        ) != 0
    return {rule: np.asarray(cut & (tp * dp > 1)) for rule, cut in broken.items()}


def check_layout(model: Model, layout: Layout) -> None:
    """Raise `InputError` with the values that would be right, where one plan breaks a rule."""
    for rule, broken in violations(model, layout).items():
        if not np.any(broken):
            continue
        if rule.startswith(("tp ", "tp and")):
            good = [str(tp) for tp in range(1, 129) if not any(np.any(b) for r, b in _tp_rules(model, tp).items())]
            whole = ", or spread experts whole (--ep)" if "experts" in rule else ""
            raise InputError(f"`tp` {layout.tp}: {rule} of {model.name}; use {_either(good)}{whole}")
        if rule.startswith("more pipeline"):
            raise InputError(f"`pp` {layout.pp}: {rule} of {model.name}; use at most {len(model.layers)}")
        if rule.startswith("dcp"):
            raise InputError(
                f"`dcp` {layout.dcp}: {rule} of {model.name} at tp {layout.tp}; leave it at 1 or raise `tp`"
            )
        raise InputError(f"`ep` {layout.ep}: {rule} in {model.name}; leave `ep` out")


def check_context(model: Model, context: int | None, *, rescaled: bool = False) -> None:
    """Raise `InputError` where a request is longer than the model's positions; ``rescaled`` when rope scaling is asked for."""
    if context is None or model.max_positions is None or rescaled or context <= model.max_positions:
        return
    raise InputError(
        f"{context} tokens a request are more than the {model.max_positions} positions of {model.name};"
        f" use at most {model.max_positions}, or give a configuration with rope scaling"
    )


def _tp_rules(model: Model, tp: int) -> Mapping[str, np.ndarray]:
    return {rule: broken for rule, broken in violations(model, Layout(tp=tp)).items() if rule.startswith("tp")}


def _either(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"
