"""Trilemma: memory capacity, memory bandwidth and precision of language models on GPUs."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("trilemma")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
