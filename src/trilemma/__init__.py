"""Trilemma: memory capacity, memory bandwidth and precision of language models on GPUs."""

from typing import Any

__all__ = ["__version__", "watch_numerics"]


def __getattr__(name: str) -> Any:
    """What is looked up when asked for: the version (package metadata is slow to read), and what needs PyTorch."""
    if name == "watch_numerics":
        from trilemma.precision.watch import watch_numerics

        return watch_numerics
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trilemma")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"
