"""What ``watch_numerics`` costs: Time of training steps of small Llamas with and without it, as a ratio.

    python benchmarks/watch_overhead.py

Needs PyTorch and Transformers (about ten minutes). Two equal models take turns, ten steps each, so that both meet the same
machine; the median ratio of all turns is given for each size, with its quartiles. The bar is 1.15 when every 10th pass is
judged. Histories are filled before (delayed scaling learns in the first 16 passes).
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
import transformers

import trilemma

VOCABULARY = 2048
SEQUENCES = 4
BAR = 1.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    hidden: int
    layers: int
    tokens: int


SIZES = (
    Size(hidden=128, layers=2, tokens=256),
    Size(hidden=256, layers=4, tokens=512),
    Size(hidden=512, layers=4, tokens=512),
)


class Trained:
    """A small Llama and its optimizer; the same numbers for the same size."""

    def __init__(self, size: Size, device: str = "cpu") -> None:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=size.hidden, intermediate_size=4 * size.hidden,
            num_hidden_layers=size.layers, num_attention_heads=8, num_key_value_heads=4,
        )  # fmt: skip
        self.model: Any = transformers.LlamaForCausalLM(config).train().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(0, VOCABULARY, (SEQUENCES, size.tokens // SEQUENCES)).to(device)
        self.on_card = device != "cpu"

    def steps(self, count: int) -> float:
        """Seconds of ``count`` training steps: of a card until it is done, else those that this process computed (another
        program on the machine does not count)."""
        began = self._now()
        for _ in range(count):
            self.model(input_ids=self.tokens, labels=self.tokens).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self._now() - began

    def _now(self) -> float:
        if not self.on_card:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def ratios(size: Size, *, every: int, rounds: int, recipe: str, device: str) -> tuple[list[float], float]:
    """Ratio of each turn of ``every`` steps, and the median CPU seconds of a step without the watch."""
    alone, watched = Trained(size, device), Trained(size, device)
    alone.steps(2)
    found, plain = [], []
    with trilemma.watch_numerics(watched.model, recipe=recipe, every=every) as watch:
        watched.steps(2 * every if every > 8 else 16)
        for turn in range(rounds):
            # The one that comes second finds warmer caches: take turns in that too.
            if turn % 2:
                with_watch, without = watched.steps(every), alone.steps(every)
            else:
                without, with_watch = alone.steps(every), watched.steps(every)
            found.append(with_watch / without)
            plain.append(without / every)
    if watch.findings:
        raise SystemExit(f"a healthy run raised alarms: {watch.report()}")
    return found, statistics.median(plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--recipes", default="fp8-delayed,mxfp8")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="of the sizes, the smallest so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    worst = 0.0
    print(f"{'recipe':12s} {'width':>5s} {'layers':>6s} {'tokens':>6s} {'step':>9s}   ratio (quartiles)")
    for recipe in options.recipes.split(","):
        for size in SIZES[: options.sizes]:
            found, step_s = ratios(
                size, every=options.every, rounds=options.rounds, recipe=recipe, device=options.device
            )
            low, middle, high = statistics.quantiles(found, n=4)
            worst = max(worst, middle)
            print(
                f"{recipe:12s} {size.hidden:5d} {size.layers:6d} {size.tokens:6d} {1e3 * step_s:6.0f} ms"
                f"   {middle:.3f} ({low:.3f} … {high:.3f})",
                flush=True,
            )
    print(f"worst median ratio {worst:.3f}, bar {BAR}, every {options.every} passes, {options.rounds} turns a size")


if __name__ == "__main__":
    main()
