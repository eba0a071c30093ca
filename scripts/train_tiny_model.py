"""Train the tiny model that ships with the package and write it where the package looks for it.

``python scripts/train_tiny_model.py [FOLDER]`` takes about five minutes on one core. The text is generated from the grammar in
``data/precision/lab_corpus.toml``; the weights in the repository were made with torch 2.13.0 on x86-64.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from trilemma.precision import tiny_model
from trilemma.precision.lab.corpus import generate_text

_HELD_OUT_CHARACTERS = 20_000


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else tiny_model.FOLDER
    torch.set_num_threads(1)
    text, source = generate_text()
    print(f"text: {len(text):,} characters, {source}")
    weights = tiny_model.train(text, report=lambda step, loss: print(f"step {step:5d}  loss {loss:.4f}", flush=True))
    rest = text[len(tiny_model.training_part(text)) :]
    tiny_model.save(folder, weights, held_out=rest[:_HELD_OUT_CHARACTERS])
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
