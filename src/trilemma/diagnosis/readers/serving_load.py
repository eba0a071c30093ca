"""What running engines print of their load: vLLM's statistics, SGLang's batches, llama.cpp's timings of requests.

Lines: vllm/v1/metrics/loggers.py (every 10 s), sglang scheduler_metrics_mixin.py (``Decode batch``, ``Prefill batch``),
llama.cpp tools/server/server-context.cpp (``prompt eval time``, ``eval time``).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from statistics import median
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "serving-log"
_MOST_SAMPLES = 100_000
_MOST_ENGINES = 256
#: Samples count as loaded where at least this share of the most requests runs.
_LOADED = 0.8
_N = r"([0-9][0-9.]{0,15})"
_FIELDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("prompt", re.compile(rf"Avg prompt throughput: {_N} tokens/s")),
    ("generated", re.compile(rf"Avg generation throughput: {_N} tokens/s")),
    ("running", re.compile(r"Running: (\d{1,9}) reqs")),
    ("waiting", re.compile(r"(?:Waiting|Pending): (\d{1,9}) reqs")),
    ("usage", re.compile(rf"KV cache usage: {_N}%")),
    ("hits", re.compile(rf"Prefix cache hit rate: {_N}%")),
)
_ENGINE = re.compile(r"Engine (\d{1,4})")
_SGLANG: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("generated", re.compile(rf"gen throughput \(token/s\): {_N}")),
    ("running", re.compile(r"#running-req: (\d{1,9})")),
    ("waiting", re.compile(r"#queue-req: (\d{1,9})")),
    ("tokens", re.compile(r"#token: (\d{1,12})")),
    ("usage", re.compile(rf"token usage: {_N}")),
    ("accepted", re.compile(rf"accept len: {_N}")),
)
_NEW = re.compile(r"#new-token: (\d{1,12}).{0,40}#cached-token: (\d{1,12})")
_RANK = re.compile(r"\b(?:DP|TP)(\d{1,4})\b")
_LLAMA = re.compile(rf"(prompt eval|       eval|eval) time =\s{{0,12}}{_N} ms /\s{{0,12}}(\d{{1,9}}) (?:tokens|runs)")


class _Gatherer:
    def __init__(self) -> None:
        self._samples: dict[str, dict[str, array[float]]] = {}
        self._first: Event | None = None
        self._count = 0
        self._new = self._cached = 0
        self._by_llama = {"prompt eval": [0.0, 0.0, 0], "eval": [0.0, 0.0, 0]}
        self._graphs = {"True": 0, "False": 0}

    def take(self, record: str, where: int) -> None:
        text = record[:2000]
        if "Avg generation throughput" in text:
            self._sample(text, where, _FIELDS, _ENGINE.search(text))
        elif "Decode batch" in text:
            self._sample(text, where, _SGLANG, _RANK.search(text[:120]))
            for value in self._graphs:
                self._graphs[value] += f"cuda graph: {value}" in text
        elif "Prefill batch" in text and (found := _NEW.search(text)):
            self._new += int(found[1])
            self._cached += int(found[2])
        elif "eval time =" in text and (found := _LLAMA.search(text)):
            kept = self._by_llama[found[1].strip()]
            kept[0] += _float(found[2])
            kept[1] += int(found[3])
            kept[2] += 1
            self._keep(where, text)

    def _sample(
        self, text: str, where: int, fields: tuple[tuple[str, re.Pattern[str]], ...], engine: re.Match[str] | None
    ) -> None:
        name = f"{fields[0][0]} {engine[1] if engine else 0}"
        if name not in self._samples and len(self._samples) >= _MOST_ENGINES:
            return
        kept = self._samples.setdefault(name, {key: array("d") for key, _ in fields})
        if len(kept["running"]) >= _MOST_SAMPLES:
            return
        self._count += 1
        for key, pattern in fields:
            found = pattern.search(text)
            kept[key].append(_float(found[1]) if found else float("nan"))
        if self._first is None and kept["running"][-1] > 0:
            self._keep(where, text)

    def _keep(self, where: int, text: str) -> None:
        if self._first is None:
            self._first = Event(name="load", line=where, values={"text": text.strip()[:300]})

    def part(self) -> Part | None:
        requests = self._by_llama["eval"][2]
        if not self._count and not requests:
            return None
        facts: dict[str, Any] = {"samples": self._count} if self._count else {"requests": requests}
        sums: dict[str, list[float]] = {}
        for kept in self._samples.values():
            for key, value in _loaded(kept).items():
                sums.setdefault(key, []).append(value)
        for key, values in sums.items():
            facts[_NAMES[key]] = round(_joined(key, values), 6)
        if self._new + self._cached:
            facts["prefix_hit"] = round(self._cached / (self._new + self._cached), 4)
        for key, name in (("prompt eval", "prompt_tokens_per_s"), ("eval", "generated_tokens_per_s")):
            milliseconds, tokens, _ = self._by_llama[key]
            if milliseconds:
                facts[f"{name}_of_a_request"] = round(tokens / milliseconds * 1e3, 3)
                facts["prompt_tokens" if key == "prompt eval" else "generated_tokens"] = int(tokens)
        if self._graphs["False"] > self._graphs["True"]:
            facts["without_graphs"] = True
        events = () if self._first is None else (self._first,)
        return Part(kind=KIND, weight=0.5 * (self._count + requests), facts=facts, events=events)


_NAMES = {
    "prompt": "prompt_tokens_per_s", "generated": "generated_tokens_per_s", "running": "running", "waiting": "waiting",
    "usage": "kv_cache_usage", "hits": "prefix_hit", "tokens": "cached_tokens", "accepted": "accepted_length",
}  # fmt: skip


def _loaded(kept: dict[str, array[float]]) -> dict[str, float]:
    """Medians over the samples in which nearly the most requests run and tokens come out; all samples where none do."""
    running, generated = kept["running"], kept["generated"]
    most = max((value for value in running if value == value), default=0.0)
    chosen = [at for at, value in enumerate(running) if value >= max(_LOADED * most, 1) and generated[at] > 0] or range(
        len(running)
    )
    found: dict[str, float] = {}
    for key, values in kept.items():
        told = [values[at] for at in chosen if values[at] == values[at]]
        if told:
            found[key] = median(told) / (100 if key == "hits" else 1)
    if "usage" in found and "hits" in kept:
        found["usage"] /= 100
    return found


def _joined(key: str, values: Sequence[float]) -> float:
    """Of several engines: what adds up is summed, shares and lengths are averaged."""
    return sum(values) if key in ("prompt", "generated", "running", "waiting", "tokens") else sum(values) / len(values)


def _float(text: str) -> float:
    try:
        return float(text.rstrip("."))
    except ValueError:
        return float("nan")


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=("Avg generation throughput", "Decode batch", "Prefill batch", "eval time ="),
)  # fmt: skip
