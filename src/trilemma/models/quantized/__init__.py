"""Quantised checkpoints: what a file says of its weights, which tensors that covers, and a model under another scheme."""

from trilemma.models.quantized.coverage import format_of
from trilemma.models.quantized.read import read_quantization
from trilemma.models.quantized.schemes import Scheme, find_scheme, requantize, restate

__all__ = ["Scheme", "find_scheme", "format_of", "read_quantization", "requantize", "restate"]
