"""A vLLM start-up log read: what the engine measured, line by line, and where its start ended."""

from __future__ import annotations

import re
from typing import Any

from trilemma.engines.base import Stage
from trilemma.engines.start_log import Measured, Refusal, StartUpLog, literal_arguments, sentences, tightest
from trilemma.engines.vllm import log_lines
from trilemma.engines.vllm.log_lines import measured_in

_MOST_SCANNED = 8192
_MOST_KEPT = 20_000
_MOST_TEXT = 200
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_CONFIG = re.compile(
    r"\b(model|max_seq_len|tensor_parallel_size|pipeline_parallel_size|data_parallel_size|dtype|quantization|"
    r"kv_cache_dtype|enforce_eager|load_format|served_model_name)=('[^']{0,512}'|[\w.]{1,80})"
)


#: Texts of which every line that `LogReader` learns from holds one, but those of a traceback.
MARKS = (
    *(kind.marker for kind in log_lines.MEASURING),
    *(mark for mark, _ in log_lines.REFUSALS),
    *log_lines.READY,
    "LLM engine", "server version ", "█  version ", "args: ",
)  # fmt: skip


class LogReader:
    """Gathers one start; a new server's first line begins anew."""

    def __init__(self) -> None:
        self.starts = 0
        self._begin()

    def _begin(self) -> None:
        self.version: str | None = None
        self.model: str | None = None
        self.arguments: dict[str, Any] = {}
        self.config: dict[str, str] = {}
        self.lines: list[Measured] = []
        self.seen: set[str] = set()
        self.ready = False
        self.traceback: Stage | None = None
        self.outcome: Stage | None = None
        self.refusal: Refusal | None = None
        self.reason: Measured | None = None

    def take(self, line: str, line_number: int) -> None:
        full = _COLOUR.sub("", line) if "\x1b" in line else line
        if " version " in full and log_lines.RESTART.search(full[:_MOST_SCANNED]):
            self.starts += 1
            if self.lines or self.refusal:
                self._begin()
        self._identify(full)
        scanned = full[:_MOST_SCANNED]
        found = measured_in(scanned)
        text = " ".join(scanned[-_MOST_SCANNED:].split())[:_MOST_TEXT] if found else ""
        rank = log_lines.RANK.search(scanned[:200]) if found else None
        for name, value in found:
            self.seen.add(name)
            if len(self.lines) < _MOST_KEPT:
                where = rank.group()[1:-1] if rank else None
                self.lines.append(Measured(name=name, value=value, line_number=line_number, text=text, rank=where))
        self._judge(scanned, line_number)

    def _identify(self, line: str) -> None:
        scanned = line[:_MOST_SCANNED]
        if (self.version is None and "version" in scanned) or "LLM engine (v" in scanned:
            match = log_lines.VERSION.search(scanned)
            self.version = match.group(1) if match else self.version
        if "to load model " in scanned and (match := log_lines.LOADING.search(scanned)):
            self.model = match.group(1)
        if "args: " in line and not self.arguments:
            self.arguments = literal_arguments(line.split("args: ", 1)[1])
        if "LLM engine" in scanned and "with config" in scanned:
            self.config = {key: value.strip("'") for key, value in reversed(_CONFIG.findall(line))}

    def _judge(self, line: str, line_number: int) -> None:
        if not self.ready and any(mark in line for mark in log_lines.READY):
            self.ready = True
        if ", in " in line:
            for pattern, stage in log_lines.TRACEBACK:
                if pattern.search(line):
                    self.traceback = stage
        refusal = next((kind for mark, kind in log_lines.REFUSALS if mark in line), None)
        if refusal is None or self.refusal is not None:
            return
        self.refusal = refusal
        self.outcome = self._stage(refusal)
        text = sentences(log_lines.PREFIX.sub("", line))
        self.reason = Measured(name="reason", value=0.0, line_number=line_number, text=text)

    def _stage(self, refusal: Refusal) -> Stage | None:
        if refusal == "configuration":
            return None
        if refusal == "free_memory":
            return "oom_load"
        if refusal in ("context", "mamba_blocks"):
            return "kv_too_small"
        if refusal == "no_kv_memory":
            return "oom_profile"
        if self.ready:
            return "oom_runtime"
        if self.traceback is not None:
            return self.traceback
        if self.seen & {"kv_cache_bytes", "kv_cache_tokens", "gpu_blocks"}:
            return "oom_capture"
        return "oom_profile" if "weights_bytes" in self.seen else "oom_load"

    def result(self, path: str) -> StartUpLog:
        outcome = self.outcome
        if self.refusal is None and self.ready:
            outcome = "ok"
        model = self.arguments.get("model_tag") or self.arguments.get("model") or self.config.get("model") or self.model
        return StartUpLog(
            path=path,
            version=self.version,
            model=str(model) if model else None,
            arguments=self.arguments,
            config=self.config,
            measured=tightest(self.lines),
            lines=tuple(self.lines),
            outcome=outcome,
            refusal=self.refusal,
            reason=self.reason,
            starts=max(self.starts, 1),
        )
