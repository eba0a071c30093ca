"""The command of a start that an SGLang log tells: the arguments that its server prints, defaults and all."""

from __future__ import annotations

from trilemma.commands.flag_words import words_of
from trilemma.engines.sglang.flags import table
from trilemma.engines.start_log import StartUpLog
from trilemma.engines.start_words import flags_from
from trilemma.errors import InputError, shorten

#: Arguments that shape memory or layout → what they are where nobody set them (server_args.py).
_DEFAULTS = {
    "tp_size": 1, "pp_size": 1, "dp_size": 1, "ep_size": 1, "context_length": None, "mem_fraction_static": None,
    "max_running_requests": None, "max_total_tokens": None, "chunked_prefill_size": None, "kv_cache_dtype": "auto",
    "quantization": None, "dtype": "auto", "disable_cuda_graph": False, "cuda_graph_max_bs": None, "enable_dp_attention": False,
    "nnodes": 1, "page_size": 1, "speculative_algorithm": None, "speculative_num_steps": None,
    "speculative_eagle_topk": None, "speculative_num_draft_tokens": None,
}  # fmt: skip


def command_of(log: StartUpLog) -> list[str]:
    """The words of the command. Raises `InputError` naming what the log does not state."""
    if log.model is None:
        raise InputError(f"--log {shorten(log.path)} names no model; put the command that was run behind --")
    words = ["python", "-m", "sglang.launch_server", "--model-path", log.model]
    for name, value in flags_from(log.arguments, _DEFAULTS).items():
        flag = table().flags.get(name.replace("_", "-"))
        if flag is not None:
            words += words_of(flag, value)
    return words
