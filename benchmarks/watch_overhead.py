"""What ``watch_numerics`` costs: steps of a small Llama with and without it, alternating in one run, as a ratio.

Needs PyTorch and Transformers. The bar is 1.15 when every 10th pass is judged.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import transformers

import trilemma


def steps(model: torch.nn.Module, tokens: torch.Tensor, count: int) -> float:
    """CPU seconds of ``count`` training steps (process time: another program on the machine does not count)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    began = time.process_time()
    for _ in range(count):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=2048, hidden_size=options.hidden, intermediate_size=4 * options.hidden,
        num_hidden_layers=options.layers, num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).train()
    tokens = torch.randint(0, 2048, (4, options.tokens // 4))
    steps(model, tokens, 2)
    ratios = []
    for _ in range(options.rounds):
        plain = steps(model, tokens, 20)
        with trilemma.watch_numerics(model, every=options.every):
            steps(model, tokens, 20)  # histories fill in the first 16 passes
            watched = steps(model, tokens, 20)
        ratios.append(watched / plain)
        print(f"20 steps: {plain:.2f} s alone, {watched:.2f} s watched, ratio {ratios[-1]:.3f}")
    print(f"median ratio {statistics.median(ratios):.3f} (bar 1.15), every {options.every} passes")


if __name__ == "__main__":
    main()
