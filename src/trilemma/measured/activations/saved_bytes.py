"""Bytes that autograd saves in a forward pass of a real Transformers model, counted with saved-tensor hooks.

The hook sees every tensor that an operation keeps for its backward pass; storages are counted once, parameters not at all.
The sum equals what the allocator holds after the forward pass, to the byte.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trilemma.errors import InputError, shorten


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTensor:
    """One storage: the module that saved it first, its shape, dtype and bytes."""

    module: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSavings:
    tensors: tuple[MeasuredTensor, ...]
    parameters: int

    @property
    def total_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)


def measure_saved_bytes(
    config: dict[str, Any], *, micro_batch: int, seq: int, dtype: str = "bf16", attention: str = "sdpa",
    checkpointed: bool = False, fake: bool = False,
) -> MeasuredSavings:  # fmt: skip
    """Build the Transformers model of ``config`` (no weights are loaded, no code of a repository runs), run one forward pass
    with its loss and count what is saved.

    ``fake`` runs without data, so models of any size fit; the causal mask is then not materialised, as on a device whose
    kernels mask by themselves. Raises `InputError` where torch or transformers are missing or do not know the model.
    """
    torch, transformers = _libraries()
    build = {key: value for key, value in config.items() if key not in ("architectures", "auto_map", "model_type")}
    try:
        settings = transformers.AutoConfig.for_model(str(config.get("model_type")), **build)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"transformers {transformers.__version__} cannot build this model: {_line(error)}") from error
    settings.use_cache = False
    for name in ("attention_dropout", "resid_pdrop", "attn_pdrop", "embd_pdrop", "hidden_dropout", "residual_dropout"):
        if hasattr(settings, name):
            setattr(settings, name, 0.0)
    torch.manual_seed(0)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    with _fake(torch) if fake else contextlib.nullcontext():
        try:
            model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation=attention, dtype=kind)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"transformers {transformers.__version__} cannot build this model: {_line(error)}"
            ) from error
        model.train()
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        ids = torch.randint(0, settings.vocab_size, (micro_batch, seq))
        with _unmasked(model) if fake else contextlib.nullcontext():
            found = _count(torch, model, ids)
    return MeasuredSavings(tensors=tuple(found), parameters=sum(one.numel() for one in model.parameters()))


def _count(torch: Any, model: Any, ids: Any) -> list[MeasuredTensor]:
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    seen: dict[int, Any] = {}
    found: list[MeasuredTensor] = []
    running: list[str] = []

    def enter(name: str) -> Any:
        return lambda *_: running.append(name)

    def leave(*_: Any) -> None:
        running.pop()

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in own and storage._cdata not in seen:
            seen[storage._cdata] = storage  # kept alive: a freed address would be taken for the same storage
            found.append(
                MeasuredTensor(
                    module=running[-1] if running else "",
                    shape=tuple(tensor.shape),
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    bytes=storage.nbytes(),
                )
            )
        return tensor

    hooks = [
        hook
        for name, module in model.named_modules()
        for hook in (module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave))
    ]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(input_ids=ids, labels=ids)
    except (RuntimeError, IndexError, ValueError) as error:
        raise InputError(f"this model does not run: {_line(error)}; try other --layers or --hidden") from error
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise InputError(f"this measurement needs {error.name}; install trilemma[torch]") from error
    transformers.logging.set_verbosity_error()
    return torch, transformers


def _fake(torch: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    del torch
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextlib.contextmanager
def _unmasked(model: Any) -> Iterator[None]:
    """Without data nothing proves a mask causal, and it would be built: say that there is none."""
    module = sys.modules[type(model).__module__]
    names = [name for name in ("create_causal_mask", "create_sliding_window_causal_mask") if hasattr(module, name)]
    before = {name: getattr(module, name) for name in names}
    for name in names:
        setattr(module, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _line(error: Exception) -> str:
    return shorten(str(error), most=160)
