"""A vLLM start-up log read: what the engine measured, line by line, and where its start ended."""

from __future__ import annotations

import ast
import codecs
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from trilemma.engines.base import Stage
from trilemma.engines.vllm import log_lines
from trilemma.engines.vllm.log_lines import Refusal, measured_in
from trilemma.errors import InputError, shorten

MOST_BYTES = 64 * 2**20
_MOST_LINE = 2**16
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One figure as printed: ``value`` in the unit that ends ``name``, the file line, its text, the worker that said it."""

    name: str
    value: float
    line_number: int
    text: str
    rank: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StartUpLog:
    """What one start says. ``measured`` holds the tightest rank's figure of each name, ``lines`` all of them.

    ``outcome`` is None when the log ends before start-up does, or when the engine refuses its configuration.
    ``arguments`` are the non-default arguments as the server logged them, ``config`` the engine's own configuration.
    ``refusal`` and ``reason`` say how and in which words the engine gave up; ``starts`` counts starts in the file, of
    which the last is read.
    """

    path: str
    version: str | None = None
    model: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, Measured] = field(default_factory=dict)
    lines: tuple[Measured, ...] = ()
    outcome: Stage | None = None
    refusal: Refusal | None = None
    reason: Measured | None = None
    starts: int = 1


def read_log(path: str | Path) -> StartUpLog:
    """Reads a log of at most 64 MiB; lines beyond 64 KiB are cut. Raises `InputError` for a file that is no text log."""
    reader = LogReader()
    for line_number, line in enumerate(_lines(Path(path)), start=1):
        reader.take(line, line_number)
    return reader.result(str(path))


def read_start(path: str | Path) -> StartUpLog:
    """`read_log` of a log that says something of a start. Raises `InputError` for one that holds no line of it."""
    found = read_log(path)
    if not (found.lines or found.outcome or found.refusal or found.model or found.version):
        raise InputError(
            f"--log {shorten(str(path))} holds no line of a vLLM start; give what the engine printed until it served or failed"
        )
    return found


def _lines(path: Path) -> Iterator[str]:
    try:
        if not path.is_file():
            raise InputError(f"--log {shorten(str(path))} is not a file; give the path of a start-up log")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(
                f"--log {shorten(str(path))} is larger than {MOST_BYTES // 2**20} MiB; cut it to one start"
            )
        with path.open("rb") as stream:
            encoding = _encoding(stream.read(4096), path)
            stream.seek(0)
            yield from _decoded(stream, encoding)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise InputError(f"--log {shorten(str(path))} cannot be read: {reason}") from error


def _encoding(head: bytes, path: Path) -> str:
    """UTF-8, or UTF-16 where a byte order mark says so (redirected output of PowerShell)."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in head:
        raise InputError(f"--log {shorten(str(path))} is not text; give the log as the engine printed it, unpacked")
    return "utf-8-sig"


def _decoded(stream: IO[bytes], encoding: str) -> Iterator[str]:
    if encoding == "utf-16":
        for line in stream.read(MOST_BYTES).decode(encoding, errors="replace").splitlines():
            yield line[:_MOST_LINE]
        return
    within = 0
    while chunk := stream.readline(_MOST_LINE):
        if within == 0:
            yield chunk.decode("utf-8", errors="replace").rstrip("\r\n").removeprefix("\ufeff")
        within = 0 if chunk.endswith(b"\n") else within + len(chunk)


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
            self.arguments = _arguments(line)
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
        text = _sentences(log_lines.PREFIX.sub("", line))
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
            measured=_tightest(self.lines),
            lines=tuple(self.lines),
            outcome=outcome,
            refusal=self.refusal,
            reason=self.reason,
            starts=max(self.starts, 1),
        )


def _sentences(text: str) -> str:
    """The first sentences of ``text`` that are short enough to tell, none of them cut."""
    found = ""
    for sentence in re.split(r"(?<=[.!?])\s+", " ".join(text.split())):
        if found and len(found) + len(sentence) >= _MOST_TEXT:
            break
        found = f"{found} {sentence}".strip()
    return found if len(found) <= _MOST_TEXT else found[:_MOST_TEXT].rpartition(" ")[0] + " …"


def _tightest(lines: list[Measured]) -> dict[str, Measured]:
    """Of each name the figure of the tightest rank: the least of what is had, the most of what is taken."""
    found: dict[str, Measured] = {}
    for line in lines:
        before = found.get(line.name)
        smaller = line.name in log_lines.SMALLEST
        if before is None or (line.value < before.value if smaller else line.value > before.value):
            found[line.name] = line
    return found


def _arguments(line: str) -> dict[str, Any]:
    """``non-default args: {…}`` or ``args: Namespace(…)``: the entries that are plain literals, nothing evaluated."""
    text = line.split("args: ", 1)[1].strip()
    if not text.startswith(("{", "Namespace(")):
        return {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    pairs: list[tuple[Any, ast.expr]] = []
    if isinstance(tree, ast.Dict):
        pairs = [
            (key.value, value)
            for key, value in zip(tree.keys, tree.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
    elif isinstance(tree, ast.Call):
        pairs = [(keyword.arg, keyword.value) for keyword in tree.keywords]
    found: dict[str, Any] = {}
    for name, node in pairs:
        try:
            found[str(name)] = ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
            continue
    return found
