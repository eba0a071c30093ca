"""The engines: each one's rules, its flags read and its flags written. Adding one is a package and a line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, cast

from trilemma.errors import UnknownName

if TYPE_CHECKING:
    from trilemma.engines.deployment import Fleet
    from trilemma.engines.engine import Engine

#: name → package; its modules are imported when they are used.
_ENGINES = {
    "vllm": "trilemma.engines.vllm",
    "sglang": "trilemma.engines.sglang",
    "tensorrt-llm": "trilemma.engines.tensorrt_llm",
    "llama.cpp": "trilemma.engines.llama_cpp",
    "transformers-serve": "trilemma.engines.transformers_serve",
}
#: Engines that deployment files are written for.
DEPLOYED = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")
_ALIASES = {
    "vllm-openai": "vllm",
    "vllm-v1": "vllm",
    "transformers": "transformers-serve",
    "trtllm": "tensorrt-llm",
    "tensorrt_llm": "tensorrt-llm",
    "llama-cpp": "llama.cpp",
    "llamacpp": "llama.cpp",
    "llama-server": "llama.cpp",
}


def readable() -> tuple[str, ...]:
    """The names of the engines whose commands are read."""
    return tuple(_ENGINES)


def canonical(name: str) -> str:
    """The registered name of an engine that ``name`` or an alias of it means; unknown names as they are."""
    key = name.strip().lower()
    return _ALIASES.get(key, key)


def get(name: str) -> Engine:
    """The engine called ``name`` (case aside), one object for each. Raises `UnknownName` with near names."""
    key = canonical(name)
    if key not in _ENGINES:
        raise UnknownName("engine", name, _ENGINES, hint=f"engines known: {', '.join(_ENGINES)}")
    return _engine(key)


@cache
def _engine(key: str) -> Engine:
    from trilemma.engines.engine import Engine

    return Engine(key, _ENGINES[key])


def deployer(name: str) -> Callable[..., Fleet]:
    """``fleet`` of the engine called ``name``: a plan as its processes. Raises `UnknownName` for engines that have none."""
    key = canonical(name)
    if key not in DEPLOYED:
        raise UnknownName("engine", name, DEPLOYED, hint=f"files are written for: {', '.join(DEPLOYED)}")
    return cast("Callable[..., Fleet]", importlib.import_module(f"{_ENGINES[key]}.deploy").fleet)
