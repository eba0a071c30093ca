"""Which tensors a checkpoint's quantisation covers, and in which format each is stored."""

from __future__ import annotations

from functools import cache

from trilemma.formats.formats import Format
from trilemma.models.architecture import Quantization
from trilemma.models.quantized.patterns import matcher

#: Roles that naming linear layers in general does not cover. The head, routers and the vision tower are linear layers too,
#: and toolkits leave them alone unless a file names them; DeepSeek's indexer weights and compressors stay 16 or 32 bits
#: (deepseek-ai/DeepSeek-V3.2-Exp inference/model.py).
_KEPT = ("embedding", "head", "norm", "bias", "router", "vision", "hyper", "compressor")
_KEPT_PARTS = ("attention.sinks", "recurrent.conv", "recurrent.state", "indexer.weights")
#: Roles that no checkpoint quantises, whatever a pattern says.
_NEVER = ("norm", "bias", "hyper", "attention.sinks", "recurrent.state")


@cache
def is_kept(role: str) -> bool:
    """Whether tensors of ``role`` stay unquantised unless a checkpoint names them."""
    return role.partition(".")[0] in _KEPT or role in _KEPT_PARTS


def format_of(quantization: Quantization | None, tensor_name: str, role: str, default: Format) -> Format:
    """The format in which the checkpoint stores one matrix.

    ``default`` is the checkpoint's unquantised dtype. Ignored modules keep it, modules with a format of their own have
    that, other linear layers have the general format. Where the checkpoint's format is not known (``weight_format``
    None) the answer is ``default`` and the caller must say that it is not the stored one.
    """
    if quantization is None or quantization.weight_format is None:
        return default
    if role in _NEVER:
        return default
    if quantization.ignored and matcher(quantization.ignored).matches(tensor_name):
        return default
    for stored, patterns in quantization.layer_formats:
        if matcher(patterns).matches(tensor_name):
            return stored
    if quantization.listed_only or is_kept(role):
        return default
    return quantization.weight_format
