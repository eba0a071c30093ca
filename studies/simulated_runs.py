"""Runs of real engines simulated and set beside what was measured; no term is fitted to them.

``python studies/simulated_runs.py --run FOLDER:MODEL:GPU[:TP] … --experiments TABLE.csv [--models DIR]``. A FOLDER holds
``meta.json`` (engine options, the cache as it was printed) and ``requests.jsonl`` (one line a request: lengths, time of arrival,
first and last token), as ServingSim's public vLLM runs do. TABLE has a line for each stage of an open-loop run of inference-perf
on vLLM: load, workload in JSON, means in seconds (inference-sim/training).

The generator of those workloads makes so many prompts (system prompts times users) and sends them in turn, so from the second
round on all of a prompt but its last block is in the prefix cache (inference-perf, shared_prefix_datagen.py). Its client gives up
after 300 s (aiohttp's default), and counted two events a token: gaps between tokens are twice what the table says.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trilemma import simulate

#: Spellings of the table that are not hub ids of the catalogue.
_TIMEOUT_S, _BLOCK = 300, 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Times of all requests in seconds, in the order in which they came."""

    ttft: Any
    queue: Any
    tpot: Any
    e2e: Any

    def rows(self, other: Figures) -> Iterator[tuple[str, str, float, float]]:
        """(figure, statistic, measured, simulated)."""
        statistics: tuple[tuple[str, Callable[[Any], float]], ...] = (
            ("mean", np.mean), ("P50", lambda x: np.percentile(x, 50)), ("P90", lambda x: np.percentile(x, 90)),
            ("P99", lambda x: np.percentile(x, 99)),
        )  # fmt: skip
        for name in ("ttft", "queue", "tpot", "e2e"):
            for words, of in statistics:
                yield name, words, float(of(getattr(self, name))), float(of(getattr(other, name)))


def replay(folder: Path, model: str, gpu: str, tp: int, models: str | None, *, told_cache: bool) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    options: dict[str, Any] = {
        "engine": f"vllm@{meta['vllm_version']}", "tp": tp, "max_seqs": meta["engine_kwargs"]["max_num_seqs"],
        "max_batched_tokens": meta["engine_kwargs"]["max_num_batched_tokens"],
        "context": meta["engine_kwargs"]["max_model_len"],
    }  # fmt: skip
    cache = (meta.get("kv_cache") or {}).get("num_kv_tokens") if told_cache else None
    with tempfile.TemporaryDirectory() as held:
        lines = Path(held) / "requests.jsonl"
        simulate(
            model,
            gpu,
            trace=folder / "requests.jsonl",
            per_request=lines,
            bounds=False,
            models=models,
            cache_tokens=cache,
            **options,
        )
        found = sorted((json.loads(line) for line in lines.read_text().splitlines()), key=lambda row: row["request"])
    start, clock = rows[0]["arrival_time"], rows[0]["queued_ts"]
    measured = _figures(
        [
            (
                r["arrival_time"] - start,
                r["first_token_ts"] - clock,
                r["last_token_ts"] - clock,
                r["output_toks"],
                r["scheduled_ts"] - clock,
            )
            for r in rows
        ]
    )
    simulated = _figures(
        [(r["arrival_s"], r["first_token_s"], r["finish_s"], r["output"], r["scheduled_s"]) for r in found]
    )
    order = spearman([r["last_token_ts"] for r in rows], [r["finish_s"] for r in found])
    told = f"cache as printed, {cache:,} tokens" if cache else "cache as predicted"
    print(f"\n{folder.name} ({told}); order of completion: Spearman {order:.4f}\n")
    print("| figure | | measured | simulated | error |\n|---|---|--:|--:|--:|")
    for name, words, real, ours in measured.rows(simulated):
        unit, scale = ("ms", 1e3) if name == "tpot" else ("s", 1.0)
        print(f"| {name} {unit} | {words} | {real * scale:.1f} | {ours * scale:.1f} | {ours / real - 1:+.1%} |")


def experiments(table: Path, models: str | None) -> None:
    print(
        "\n| run | load | e2e s | simulated | TTFT ms | simulated | ITL ms | simulated |\n|---|---|--:|--:|--:|--:|--:|--:|"
    )
    errors = []
    for row in csv.DictReader(table.read_text().splitlines()):
        if row["stage"] == "summary":
            continue
        measured = (float(row["e2e_s_mean"]), float(row["ttft_s_mean"]), 2 * float(row["itl_s_mean"]))
        found = experiment(row, models)
        errors.append([abs(ours / real - 1) for ours, real in zip(found, measured, strict=True)])
        cells = [
            f"{real * scale:.4g} | {ours * scale:.4g}"
            for real, ours, scale in zip(measured, found, (1, 1e3, 1e3), strict=True)
        ]
        print(f"| {row['experiment'][16:]} {row['stage']} | {row['load_type']} {row['rate']}/s | {' | '.join(cells)} |")
    medians = np.median(np.array(errors), axis=0)
    print(f"\nmedian error of {len(errors)} runs: e2e {medians[0]:.1%}, TTFT {medians[1]:.1%}, ITL {medians[2]:.1%}")


def experiment(row: Mapping[str, str], models: str | None) -> tuple[float, float, float]:
    """Means of e2e, TTFT and gaps in seconds of one stage of one run, simulated."""
    with tempfile.TemporaryDirectory() as held:
        trace, lines = Path(held) / "trace.jsonl", Path(held) / "requests.jsonl"
        trace.write_text("\n".join(json.dumps(one) for one in shared_prompts(row)))
        simulate(
            row["model"], f"h100-sxm:{row['tp']}", trace=trace, per_request=lines, bounds=False, models=models,
            timeout=_TIMEOUT_S, engine="vllm@0.15.1", tp=int(row["tp"]), max_seqs=int(row["max_num_seqs"]),
            max_batched_tokens=int(row["max_num_batched_tokens"]), context=int(row["max_model_len"]),
        )  # fmt: skip
        found = [json.loads(line) for line in lines.read_text().splitlines()]
    figures = _figures(
        [(r["arrival_s"], r["first_token_s"], r["finish_s"], r["output"], r["scheduled_s"]) for r in found]
    )
    return float(figures.e2e.mean()), float(figures.ttft.mean()), float(figures.tpot.mean())


def shared_prompts(row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The requests of one stage: prompts sent in turn, system prompts shared by their users."""
    workload, rate = json.loads(row["workload"]), float(row["rate"])
    each = workload["num_users_per_system_prompt"]
    users = workload["num_unique_system_prompts"] * each
    isl, osl = round(float(row["prompt_len_mean"])), round(float(row["output_len_mean"]))
    shared = workload["system_prompt_len"] // _BLOCK
    for at in range(int(row["n_ok"]) + int(row["n_fail"])):
        user = at % users
        names = [f"s{user // each}.{block}" for block in range(shared)]
        names += [f"u{user}.{block}" for block in range(shared, -(-isl // _BLOCK))]
        yield {"arrival": at / rate, "input": isl, "output": osl, "hash_ids": names}


def _figures(rows: Sequence[tuple[float, float, float, int, float]]) -> Figures:
    arrival, first, last, output, entered = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    return Figures(
        ttft=first - arrival,
        queue=entered - arrival,
        tpot=(last - first) / np.maximum(output - 1, 1),
        e2e=last - arrival,
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    ranks = [np.argsort(np.argsort(np.array(values))) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="append", default=[], metavar="FOLDER:MODEL:GPU[:TP]")
    parser.add_argument("--experiments", type=Path, metavar="TABLE.csv")
    parser.add_argument("--models", metavar="DIR")
    asked = parser.parse_args()
    for words in asked.run:
        folder, model, gpu, *tp = words.split(":")
        degree = int(tp[0]) if tp else 1
        told = (False, True) if "num_kv_tokens" in (Path(folder) / "meta.json").read_text() else (False,)
        for one in told:
            replay(Path(folder), model, f"{gpu}:{degree}", degree, asked.models, told_cache=one)
    if asked.experiments:
        experiments(asked.experiments, asked.models)


if __name__ == "__main__":
    main()
