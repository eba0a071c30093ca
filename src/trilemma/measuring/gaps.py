"""A pilot beside its prediction: every figure with its error, and every gap with what it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trilemma.estimate.estimate import Estimate
from trilemma.measuring.pilot import DecodeMeasured, PilotAsked, TrainingMeasured

#: Which lines of an estimate stand for a line, or a kind of kernel, of a pilot. The runtime's context and what its allocator
#: holds free lie beside the tensors.
_MEMORY = {
    "weights": ("weights",), "gradients": ("gradients",), "optimizer": ("optimizer", "master_weights"),
    "activations and logits": ("activations", "logits", "workspace"),
}  # fmt: skip
_STEP = {
    "products and loss": ("linear", "experts", "logits", "recompute"), "attention": ("attention", "scan"),
    "elementwise and host": ("elementwise", "launches", "quantisation", "step"), "optimizer": ("optimizer",),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """One figure, predicted and measured, in its own unit; ``of`` is the figure that it is a part of, "" for a whole."""

    figure: str
    unit: str
    predicted: float
    measured: float
    of: str = ""

    @property
    def error(self) -> float:
        """Predicted over measured minus one."""
        return self.predicted / self.measured - 1 if self.measured else 0.0


def training_gaps(predicted: Estimate, measured: TrainingMeasured, *, tokens: int) -> list[Gap]:
    """Memory by line, the step by kind of kernel, throughput and utilisation."""
    items = {line.name: float(line.bytes) for line in predicted.memory.ledger}
    memory = [
        Gap(
            figure=name, unit="bytes", predicted=sum(items.get(one, 0.0) for one in _MEMORY[name]),
            measured=measured.lines.get(name, 0.0), of="peak memory",
        )
        for name in _MEMORY
        if name in measured.lines or any(one in items for one in _MEMORY[name])
    ]  # fmt: skip
    total = Gap(
        figure="peak memory", unit="bytes", predicted=sum(gap.predicted for gap in memory), measured=measured.peak_bytes
    )
    speed = predicted.speed
    assert speed is not None and speed.step_s is not None  # noqa: PT018 - the estimate of a training plan
    lines: Mapping[str, float] = {line: float(seconds) for line, seconds in speed.lines.items()}
    step_s, median_s = float(speed.step_s.interval.value), measured.step.median_s
    parts = [
        Gap(
            figure=name, unit="s", predicted=sum(lines.get(one, 0.0) for one in _STEP[name]),
            measured=measured.parts_s.get(name, 0.0), of="training step",
        )
        for name in _STEP
    ]  # fmt: skip
    found = [total, *memory]
    if measured.allocator_peak_bytes is not None:
        found.append(
            Gap(
                figure="allocator's peak",
                unit="bytes",
                predicted=total.predicted,
                measured=measured.allocator_peak_bytes,
            )
        )
    found += [Gap(figure="training step", unit="s", predicted=step_s, measured=median_s), *parts]
    found.append(Gap(figure="trained tokens", unit="tokens/s", predicted=tokens / step_s, measured=tokens / median_s))
    for name, value in (("MFU", speed.mfu), ("HFU", speed.hfu)):
        if value is not None:
            told = float(value.value)
            found.append(Gap(figure=name, unit="share", predicted=told, measured=told * step_s / median_s))
    return found


def decode_gaps(predicted: Estimate, measured: DecodeMeasured, *, batch: int) -> list[Gap]:
    """First token, each further token, and tokens a second."""
    speed = predicted.speed
    assert speed is not None and speed.ttft_s is not None and speed.tpot_s is not None  # noqa: PT018
    ttft_s, tpot_s = float(speed.ttft_s.interval.value), float(speed.tpot_s.interval.value)
    return [
        Gap(figure="first token", unit="s", predicted=ttft_s, measured=measured.first.median_s),
        Gap(figure="token", unit="s", predicted=tpot_s, measured=measured.token.median_s),
        Gap(
            figure="generated tokens",
            unit="tokens/s",
            predicted=batch / tpot_s,
            measured=batch / measured.token.median_s,
        ),
    ]


def gap_words(gaps: list[Gap]) -> list[str]:
    """For each whole that is off, the part that most of it comes from."""
    told = []
    for whole in (gap for gap in gaps if not gap.of):
        parts = [gap for gap in gaps if gap.of == whole.figure]
        if not parts or abs(whole.error) < 0.005:
            continue
        most = max(parts, key=lambda gap: abs(gap.predicted - gap.measured))
        share = (most.predicted - most.measured) / (whole.predicted - whole.measured)
        where = "over" if most.predicted > most.measured else "under"
        told.append(
            f"{whole.figure} {whole.error:+.1%}: most from {most.figure}, {where}stated by"
            f" {abs(most.error):.0%}" + (f" ({share:.0%} of the gap)" if 0 < share <= 1.5 else "")
        )
    return told


@dataclass(frozen=True, kw_only=True, slots=True)
class Piloted:
    """What was predicted and measured of a pilot; ``card`` is what the prediction is of."""

    asked: PilotAsked
    device: str
    model: str
    parameters: float
    card: str
    gaps: tuple[Gap, ...]
