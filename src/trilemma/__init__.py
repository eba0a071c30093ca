"""Trilemma: memory capacity, memory bandwidth and precision of language models on GPUs."""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """``__version__``, looked up when asked for: reading package metadata takes longer than most commands may."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trilemma")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"
