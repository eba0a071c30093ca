"""Versions of libraries: ``pip freeze``, ``pip list``, ``conda list``, and what ``collect_env.py`` prints."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "package-versions"
_MOST = 4096
_VERSION = r"v?(\d{1,6}(?:\.\d{1,6}){0,4}(?:[.+-]?[a-zA-Z][\w.+-]{0,40})?(?:\+[\w.]{1,40})?)"
_PINNED = re.compile(rf"^(?:\[(?:pip3?|conda)\] )?([A-Za-z][\w.-]{{1,60}})(?:==|\s+){_VERSION}(?:\s|;|$)")
_STATED = re.compile(
    rf"^\s*(PyTorch version|vLLM Version|SGLang|CUDA used to build PyTorch|CUDA runtime version|cuDNN version|"
    rf"HIP runtime version|Transformers|transformers version|NCCL version|ROCM used to build PyTorch|Python version)"
    rf"\s*: ?{_VERSION}"
)
_NAMES = {
    "pytorch version": "torch", "vllm version": "vllm", "cuda used to build pytorch": "torch-cuda",
    "cuda runtime version": "cuda-toolkit", "cudnn version": "cudnn", "hip runtime version": "hip", "nccl version": "nccl",
    "transformers version": "transformers", "rocm used to build pytorch": "torch-rocm", "python version": "python",
}  # fmt: skip


class _Gatherer:
    def __init__(self) -> None:
        self._found: dict[str, Event] = {}

    def take(self, record: str, where: int) -> None:
        stated = _STATED.match(record)
        found = stated or _PINNED.match(record)
        if found is None:
            return
        name = _NAMES.get(found[1].lower(), found[1].lower().replace("_", "-"))
        if (stated or name in watched()) and len(self._found) < _MOST:
            values: dict[str, Any] = {"package": name, "version": found[2]}
            self._found.setdefault(name, Event(name="version", line=where, values=values))

    def part(self) -> Part | None:
        if not self._found:
            return None
        facts = {"versions": {event.values["package"]: event.values["version"] for event in self._found.values()}}
        return Part(kind=KIND, weight=len(self._found), facts=facts, events=tuple(self._found.values()))


@cache
def watched() -> frozenset[str]:
    """Packages of which something is known (data/diagnosis/known_bad.toml) or that others are told by."""
    from trilemma.data.files import read_data

    return frozenset(read_data("diagnosis/known_bad.toml")["watched"])


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=("torch", "vllm", "sglang", "transformers", "flash", "nccl", "triton", "xformers", "version", "Version",
           "transformer", "deepspeed", "accelerate", "bitsandbytes", "megatron", "peft", "trl", "numpy", "cudnn", "CUDA used",
           "tensorrt", "auto", "compressed-tensors", "ray", "outlines", "xgrammar", "llama", "SGLang", "Transformers"),
)  # fmt: skip
