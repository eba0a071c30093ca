"""A pilot: one real training step and one real generation loop of a Transformers model with random weights, timed and weighed.

Memory is followed tensor by tensor by PyTorch's own tracker (``torch.distributed._tools.mem_tracker``), the same on a card and
on a processor; a card's allocator says the peak beside it.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.measuring.clock import Timing, summary
from trilemma.measuring.device import FORMATS, Device
from trilemma.measuring.repeats import Repeats

#: What of the tracker's kinds of memory a line of an estimate is.
_LINES = {
    "PARAM": "weights", "GRAD": "gradients", "OPT": "optimizer", "ACT": "activations and logits",
    "TEMP": "activations and logits", "BUFFER": "activations and logits", "OTH": "activations and logits",
}  # fmt: skip
_PRODUCTS = re.compile(
    r"aten::(mm|addmm|bmm|baddbmm|matmul|linear|_scaled_mm|.*mkldnn_linear.*|.*log_softmax.*|nll_loss.*)$"
)
_ATTENTION = re.compile(r"scaled_dot_product|flash_attention|efficient_attention|cudnn_attention")
_UPDATE = "Optimizer.step#"


@dataclass(frozen=True, kw_only=True, slots=True)
class PilotAsked:
    """What a pilot runs: ``fmt`` of weights and activations, ``recompute`` of whole layers, prompts of ``isl`` and ``osl`` tokens
    made of each in a batch of ``decode_batch``."""

    config: Mapping[str, Any]
    seq: int
    micro_batch: int
    fmt: str = "bf16"
    recompute: bool = False
    attention: str = "sdpa"
    isl: int = 64
    osl: int = 32
    decode_batch: int = 1
    steps: int = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingMeasured:
    """One step: bytes by line at the peak, the step and its seconds by kind of kernel, the allocator's own peak on a card."""

    lines: Mapping[str, float]
    peak_bytes: float
    allocator_peak_bytes: float | None
    step: Timing
    parts_s: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeMeasured:
    """``first`` is the time of a prompt and its first token, ``token`` that of each further one."""

    first: Timing
    token: Timing


def train(device: Device, asked: PilotAsked) -> TrainingMeasured:
    """Measure the training step. Raises `InputError` where the model cannot be built or does not fit."""
    torch = device.torch
    with _refused(device):
        model = _model(device, asked).train()
        model.config.use_cache = False
        if asked.recompute:
            _recompute(model)
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.randint(0, model.config.vocab_size, (asked.micro_batch, asked.seq), device=device.place)

        def step() -> None:
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        lines = _lines_of_memory(model, optimizer, step)
        peak = _allocator_peak(device, step)
        rounds = [device.watch.seconds(step) for _ in range(asked.steps)]
        parts = _parts(device, step)
    timing = summary(rounds)
    whole = sum(parts.values())
    return TrainingMeasured(
        lines=lines, peak_bytes=sum(lines.values()), allocator_peak_bytes=peak, step=timing,
        parts_s={name: seconds / whole * timing.median_s for name, seconds in parts.items()},
    )  # fmt: skip


def decode(device: Device, asked: PilotAsked) -> DecodeMeasured:
    """Measure prefill and the generation loop, greedy and without an end of text."""
    torch = device.torch
    with _refused(device):
        model = _model(device, asked).eval()
        model.config.use_cache = model.generation_config.use_cache = True
        ids = torch.randint(0, model.config.vocab_size, (asked.decode_batch, asked.isl), device=device.place)
        mask = torch.ones_like(ids)
        repeats = Repeats(model=model, ids=ids, mask=mask)
        repeats.make(2)
        firsts, tokens = [], []
        for _ in range(asked.steps):
            firsts.append(device.watch.seconds(lambda: repeats.make(1)))
            whole = device.watch.seconds(lambda: repeats.make(asked.osl))
            tokens.append((whole - firsts[-1]) / (asked.osl - 1))
    return DecodeMeasured(first=summary(firsts), token=summary(tokens))


def _model(device: Device, asked: PilotAsked) -> Any:
    try:
        import transformers
    except ImportError:
        raise InputError("a pilot needs transformers; install trilemma[torch]") from None
    transformers.logging.set_verbosity_error()
    config = {
        key: value for key, value in asked.config.items() if key not in ("architectures", "auto_map", "model_type")
    }
    config.pop("quantization_config", None)
    torch = device.torch
    try:
        settings = transformers.AutoConfig.for_model(str(asked.config.get("model_type")), **config)
        for name in ("attention_dropout", "resid_pdrop", "attn_pdrop", "embd_pdrop", "hidden_dropout"):
            if hasattr(settings, name):
                setattr(settings, name, 0.0)
        torch.manual_seed(0)
        with torch.device(device.place):
            return transformers.AutoModelForCausalLM.from_config(
                settings, dtype=getattr(torch, FORMATS[asked.fmt]), attn_implementation=asked.attention
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"transformers {transformers.__version__} cannot build this model: {shorten(str(error), most=160)}"
        ) from error


def _recompute(model: Any) -> None:
    """Checkpoint every layer, by the name that the release of Transformers has for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


@contextlib.contextmanager
def _refused(device: Device) -> Iterator[None]:
    """What runs out of memory or does not run, in one line."""
    try:
        yield
    except (RuntimeError, MemoryError, IndexError) as error:
        if "memory" in str(error).lower() or isinstance(error, MemoryError):
            raise InputError(
                f"the pilot does not fit {device.name}; give a smaller batch, sequence or model, or recompute"
            ) from None
        raise InputError(f"the pilot does not run: {shorten(str(error).splitlines()[0], most=200)}") from error


def _lines_of_memory(model: Any, optimizer: Any, step: Callable[[], None]) -> dict[str, float]:
    """Bytes by line at the peak of the second step, when the optimizer's state is there."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        step()
        tracker.reset_mod_stats()
        step()
    found: dict[str, float] = {}
    for of_device in tracker.get_tracker_snapshot("peak").values():
        for kind, n_bytes in of_device.items():
            name = _LINES.get(str(getattr(kind, "name", kind)))
            if name is not None and n_bytes:
                found[name] = found.get(name, 0.0) + float(n_bytes)
    return {name: found[name] for name in dict.fromkeys(_LINES.values()) if name in found}


def _allocator_peak(device: Device, step: Callable[[], None]) -> float | None:
    if not device.on_card:
        return None
    device.torch.cuda.reset_peak_memory_stats(device.place)
    step()
    device.watch.wait()
    return float(device.torch.cuda.max_memory_allocated(device.place))


def _parts(device: Device, step: Callable[[], None]) -> dict[str, float]:
    """Seconds of one step by kind of kernel, under the profiler, whose own time is in all of them alike."""
    from torch.profiler import ProfilerActivity, profile

    own = "self_device_time_total" if device.on_card else "self_cpu_time_total"
    whole = "device_time_total" if device.on_card else "cpu_time_total"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.on_card else [])]
    step()
    with profile(activities=activities) as profiled:
        step()
        device.watch.wait()
    events = profiled.key_averages()
    found = {"products and loss": 0.0, "attention": 0.0, "elementwise and host": 0.0, "optimizer": 0.0}
    total = 0.0
    for event in events:
        seconds = float(getattr(event, own)) / 1e6
        total += seconds
        if _ATTENTION.search(event.key):
            found["attention"] += seconds
        elif _PRODUCTS.match(event.key):
            found["products and loss"] += seconds
        elif event.key.startswith(_UPDATE):
            found["optimizer"] += float(getattr(event, whole)) / 1e6
    found["elementwise and host"] = max(total - sum(found.values()), 0.0)
    return found
