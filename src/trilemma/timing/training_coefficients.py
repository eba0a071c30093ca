"""How fast training kernels and collectives really run: datasheet rates times fitted coefficients, each with its name.

A rate is ``datasheet value · product of named coefficients``. Names are keyed by kind of kernel, number format, generation of
card, card, framework, dense or mixture, and software era, never by model. For one that the data file lacks `training_ladder`
says what stands in its place, and the interval is the wider one of what is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.hosts import node_of
from trilemma.plans.training import TrainingPlan
from trilemma.timing.own_rates import training_rates
from trilemma.timing.roofline import peak_flops
from trilemma.timing.slow_wires import over_slow_wire
from trilemma.timing.training_collectives import ONCE_A_DOMAIN, Fabric
from trilemma.timing.training_frameworks import FrameworkTiming, framework_of, newest_era
from trilemma.timing.training_ladder import generation_of, rung
from trilemma.timing.training_passes import step_numbers

_FILE = "coefficients/training_time.json"
#: Formats of matrix products by recipe: the peak that bounds them and the coefficient that holds for them.
_MATMUL = {
    "same": ("bf16", "bf16"), "fp8_tensor": ("fp8", "fp8"), "fp8_row": ("fp8", "fp8_row"), "fp8_block": ("fp8", "fp8_block"),
    "mxfp8": ("fp8", "mxfp8"), "nvfp4": ("nvfp4", "nvfp4"),
}  # fmt: skip
#: Exponent (less one) of what comes one after the other.
_SUM = 1e-9
#: Dispatchers under which the host reads how many tokens came before it launches what follows; padded buffers have a known size.
_COUNTED = ("", "alltoall", "deepep")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSetting:
    """What chooses coefficients: card, fabric, framework, format of products, dense or mixture, era of the software.

    ``host_bytes_per_s`` is one card's part of what its node's memory moves; ``dispatcher`` moves tokens ("": all-to-all),
    ``graphs`` replay "parts" of the kernels of a step or the "whole" of them ("": none), ``waits``: the host waits for counts of
    routed tokens; ``unfused`` is a factor on seconds of elementwise kernels; ``fmt`` is of activations.
    """

    accelerator: Accelerator
    fabric: Fabric
    framework: FrameworkTiming
    host_bytes_per_s: float
    matmul: str = "same"
    attention: str = "flash"
    mixture: bool = False
    era: str = ""
    overlap_tensor: bool = False
    overlap_data: bool = True
    dispatcher: str = ""
    graphs: str = ""
    waits: bool = False
    fused_experts: bool = False
    attention_fp8: bool = False
    unfused: float = 1.0
    fmt: str = "bf16"

    @classmethod
    def of(
        cls,
        plan: TrainingPlan,
        cluster: Cluster,
        *,
        mixture: bool,
        framework: FrameworkTiming | None = None,
        era: str = "",
    ) -> TrainingSetting:
        """The setting of ``plan``; ``framework`` defaults to the usual one of its implementation, ``era`` to the newest."""
        chosen = framework or framework_of(plan)
        today = chosen.attention_today if not era and plan.version is None else ""
        if f"attention.{generation_of(cluster.accelerator)}.{today}" not in coefficients():
            today = ""
        dispatcher = plan.dispatcher or chosen.dispatcher
        whole = plan.step_graph or not mixture or dispatcher == "padded"
        eager = chosen.written_in_torch and not plan.compiled and plan.loss != "fused"
        return cls(
            accelerator=cluster.accelerator,
            fabric=Fabric.of(cluster),
            framework=chosen,
            host_bytes_per_s=node_of(cluster).bytes_per_s.value / min(cluster.gpus_per_node, cluster.gpus),
            matmul=plan.recipe.matmul,
            attention="unfused" if plan.attention == "eager" else today or chosen.attention,
            mixture=mixture,
            era=era or newest_era(chosen.name),
            overlap_tensor=chosen.overlap_tensor if plan.overlap_tensor is None else plan.overlap_tensor,
            overlap_data=chosen.overlap_data if plan.overlap_data is None else plan.overlap_data,
            dispatcher=dispatcher,
            graphs="" if not plan.cuda_graphs else "whole" if whole else "parts",
            waits=mixture and dispatcher in _COUNTED,
            fused_experts=plan.fused_experts,
            attention_fp8=plan.attention_fp8,
            unfused=float(step_numbers()["eager"]["seconds"]) if eager else 1.0,
            fmt=plan.recipe.activations,
        )


Terms = tuple[float, tuple[str, ...]]


def rate_terms(setting: TrainingSetting) -> dict[str, Terms]:
    """Every rate as (datasheet value, names of coefficients that multiply it). Rates end in what they are per second of;
    ``launch``, ``call`` and ``step`` are seconds, ``power_…`` exponents, ``narrow`` a head width, ``software`` a plain factor.
    """
    card, fabric, framework = setting.accelerator, setting.fabric, setting.framework.name
    peak_format, kernel = _multiplied_in(setting)
    generation = generation_of(card)
    kind = "mixture" if setting.mixture else "dense"
    bf16, low = peak_flops(card, "bf16"), peak_flops(card, peak_format)
    general = (f"gpu.{card.id}", f"framework.{framework}")
    narrow = (
        f"matmul.{kernel}",
        f"generation.{generation}.{kernel}",
        *general,
        f"framework_format.{framework}.{kernel}",
    )
    wires = {}
    pcie = () if fabric.linked else ("wire.pcie",)
    for name in ("tensor", "expert", "context", "shard", "data"):
        hidden = (f"overlap.{name}",) if getattr(setting, f"overlap_{name}", False) and name == "tensor" else ()
        own = (f"links.{framework}",) if name in ("shard", "data") else ()
        if name == "expert" and setting.dispatcher in ONCE_A_DOMAIN:
            own = (f"dispatch.{setting.dispatcher}",)
        wires[f"{name}_near"] = (fabric.near_bytes_per_s, (f"wire.{name}_near", *pcie, *hidden, *own))
        wires[f"{name}_far"] = (fabric.far_bytes_per_s, (f"wire.{name}_far", f"ports.{generation}", *hidden, *own))
    bandwidth = card.bandwidth_bytes_per_s.value
    waits = ("wait.mixture",) if setting.waits else ()
    graphs = (f"graphs.{setting.graphs}.{kind}",) if setting.graphs else ()
    fused = ("fused.experts",) if setting.fused_experts else ()
    eight = ("fused.attention",) if setting.attention_fp8 else ()
    return {
        "linear": (low, narrow),
        "plain": (bf16, ("matmul.bf16", f"generation.{generation}.bf16", *general)),
        "expert": (low, (*narrow, f"experts.{'bf16' if kernel == 'bf16' else 'low'}", f"grouped.{framework}", *fused)),
        "attention": (bf16, (f"attention.{generation}.{setting.attention}", general[0], *eight)),
        "narrow": (1.0, ("attention.narrow",)),
        "scan": (bf16, ("scan",)),
        "stream": (bandwidth, ("memory.stream",)),
        "pointwise": (bandwidth / setting.unfused, ("memory.pointwise", f"pointwise.{framework}")),
        "logits": (bandwidth / setting.unfused, ("memory.logits",)),
        "casts": (bandwidth, (f"casts.{kernel}",) if kernel != "bf16" else ()),
        "optimizer": (bandwidth, ("memory.optimizer", f"optimizer.{framework}")),
        **wires,
        "pipeline_near": (fabric.near_bytes_per_s, ("wire.pipeline", *pcie)),
        "pipeline_far": (fabric.far_bytes_per_s, ("wire.pipeline",)),
        "host": (card.host_bytes_per_s.value if card.host_bytes_per_s else fabric.far_bytes_per_s, ("wire.host",)),
        "host_optimizer": (setting.host_bytes_per_s * float(host_update()["share"]), ()),
        "launch": (1.0, ("seconds.launch", f"launch.{kind}", f"launch.{framework}", *waits, *graphs)),
        "call": (1.0, ("seconds.call",)),
        "step": (1.0, ("seconds.step",)),
        "straggle": (1.0, ("share.straggle",)),
        "power_roofline": (1.0, ("power.roofline",)),
        "power_overlap": (1.0, ("power.overlap",)),
        "power_launch": (1.0, ("power.launch",)) if setting.mixture else (_SUM, ()),
        "software": (1.0, (f"kind.{framework}.{kind}", f"era.{framework}.{setting.era}.{kind}")),
    }


def _multiplied_in(setting: TrainingSetting) -> tuple[str, str]:
    """The peak that bounds the products and the coefficient that holds for them, on the units that the card has."""
    card, (peak_format, kernel) = setting.accelerator, _MATMUL[setting.matmul]
    if peak_format not in card.peak_flops:
        peak_format = kernel = "bf16" if "fp8" not in card.peak_flops or peak_format != "nvfp4" else "fp8"
    return peak_format, kernel


def most_of_bf16(setting: TrainingSetting) -> float:
    """The peak of the units that multiply over that of BF16, which a share of BF16's peak never exceeds.

    A number: 1 in BF16, 2 where FP8 is multiplied at twice its rate (datasheets named in the accelerator's data file).
    """
    card = setting.accelerator
    return max(peak_flops(card, _multiplied_in(setting)[0]) / peak_flops(card, "bf16"), 1.0)


@cache
def host_update() -> Mapping[str, Any]:
    """Share of a host's memory bandwidth at which its processor updates weights, as numbers with their source
    (data/coefficients/host_memory.toml)."""
    row: Mapping[str, Any] = read_data("coefficients/host_memory.toml")["optimizer"]
    return row


def rates(setting: TrainingSetting) -> dict[str, float]:
    """Every rate as a number, from the coefficients in the data file; what no run told stands on a rung of the ladder.

    FLOPs or bytes a second, or seconds, as the name says. Source: ``data/coefficients/training_time.json`` and the runs
    that it names.
    """
    known = coefficients()
    found = {}
    for name, (value, names) in rate_terms(setting).items():
        for one in names:
            value *= known[one] if one in known else rung(one, setting.accelerator, known)
        found[name] = over_slow_wire(value, setting.fabric) if name.endswith("_far") else value
    if f"gpu.{setting.accelerator.id}" not in known and setting.matmul == "same":
        found |= training_rates(setting.accelerator, setting.fmt)
    return found


def unknown_terms(setting: TrainingSetting) -> list[str]:
    """What of ``setting`` no measurement told: card, framework, format, kind of model; for warnings and wider intervals."""
    known = coefficients()
    framework = setting.framework.name
    kernel = _MATMUL[setting.matmul][1]
    wanted = {
        f"GPU {setting.accelerator.name}": f"gpu.{setting.accelerator.id}",
        f"framework {framework}": f"framework.{framework}",
        f"{kernel} under {framework}": f"framework_format.{framework}.{kernel}",
        f"{'mixtures' if setting.mixture else 'dense models'} under {framework}": (
            f"kind.{framework}.{'mixture' if setting.mixture else 'dense'}"
        ),
    }
    return [text for text, name in wanted.items() if name not in known]


@cache
def coefficients() -> Mapping[str, float]:
    """Every fitted coefficient by its dotted name."""
    return dict(_flat(document()["coefficients"]))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, float]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)


@cache
def document() -> Mapping[str, Any]:
    """The data file as read."""
    return read_data(_FILE)
