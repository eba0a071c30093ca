"""Which batch sizes vLLM captures as CUDA graphs: its three flags and its compilation configuration, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.commands.command_line import FlagSettings
from trilemma.commands.flags import FlagTable
from trilemma.errors import InputError, shorten
from trilemma.plans import ServeOptions
from trilemma.versions import Version

_MOST_SIZES = 8192
_SIZE_FLAGS = ("cudagraph-capture-sizes", "max-cudagraph-capture-size", "cuda-graph-sizes")


def read_capture_sizes(settings: FlagSettings, extra: dict[str, Any]) -> tuple[int, ...] | None:
    """The batch sizes captured: from the flags, or from the compilation configuration; empty when graphs are off.

    The rest of that configuration goes to ``extra``. Raises `InputError` for sizes that are no whole numbers.
    """
    rest = {} if (value := settings.value("compilation-config")) is None else _compilation(value)
    inner, most_inside = rest.pop("cudagraph_capture_sizes", None), rest.pop("max_cudagraph_capture_size", None)
    off = str(rest.get("cudagraph_mode")).upper() in ("NONE", "0") and "cudagraph_mode" in rest
    if off:
        del rest["cudagraph_mode"]
    if rest:
        extra["compilation-config"] = rest
    sizes, most, older = (settings.value(name) for name in _SIZE_FLAGS)
    most = most_inside if most is None else most
    if off:
        return ()
    if sizes is None and inner is None and older is not None:
        # One number was the largest of a ladder (SchedulerConfig.cuda_graph_sizes, 0.10).
        sizes = [1, 2, 4, *range(8, min(older[0], 8 * _MOST_SIZES) + 1, 8)] if len(older) == 1 else sorted(older)
    sizes = inner if sizes is None else sizes
    if sizes is None and most is not None:
        sizes = _ladder(most)
    if sizes is None:
        return None
    whole = isinstance(sizes, list) and all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    if not whole or len(sizes) > _MOST_SIZES or any(not 0 < size <= 2**24 for size in sizes):
        raise InputError(f"CUDA graph sizes {shorten(str(sizes)[:200])} are not whole numbers of at least 1")
    return tuple(sizes)


def _ladder(most: Any) -> list[int]:
    """The sizes up to ``most``: 1, 2, 4, steps of 8 below 256, then of 16 (VllmConfig._set_cudagraph_sizes)."""
    if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= 16 * _MOST_SIZES:
        raise InputError(f"the largest CUDA graph size {shorten(str(most))!r} is not a whole number such as 512")
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size <= most]


def _compilation(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 3:
        return {"level": value}
    raise InputError(f"--compilation-config {shorten(str(value))!r} is neither a level from 0 to 3 nor a JSON object")


def capture_settings(options: ServeOptions, known: FlagTable, version: Version) -> dict[str, Any]:
    """Graph sizes by their own flag where the version has it, else inside the compilation configuration; () turns them off."""
    rest = options.extra.get("compilation-config")
    sizes = None if options.cuda_graph_sizes is None else list(options.cuda_graph_sizes)
    if sizes and known.flags["cudagraph-capture-sizes"].exists_at(version):
        return {"cudagraph-capture-sizes": sizes, "compilation-config": rest}
    if sizes is not None:
        rest = {**(rest or {}), **({"cudagraph_capture_sizes": sizes} if sizes else {"cudagraph_mode": "NONE"})}
    return {"compilation-config": rest}
