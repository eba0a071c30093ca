"""Foreign patterns of checkpoints, drawn at random: ``attack_patterns.py [N] [SEED]`` says how long the slowest was answered for.

Each is compiled and matched against the modules of a model of 48 layers, as `ignore` lists of checkpoints are. Exit 1 where one
takes more than a second.
"""

from __future__ import annotations

import random
import sys
import time

from trilemma.errors import InputError
from trilemma.models.quantized.patterns import matcher

ATOMS = ("a", "b", ".", "\\.", "[ab]", "[^a]", "\\d", "\\w", "layers", "mlp", "(a|b)", "(?:x|.)", "0", "")
REPEATS = ("", "", "", "*", "+", "?", "{0,99}", "{3}", "*?", "{1,}")
NAMES = [
    f"model.layers.{layer}.{kind}.weight"
    for layer in range(48)
    for kind in ("self_attn.q_proj", "mlp.experts.3.up_proj", "mlp.gate")
]


def drawn(random_: random.Random, depth: int = 0) -> str:
    """A pattern of a few parts, groups inside groups among them, at most 400 characters long."""
    parts = []
    for _ in range(random_.randint(1, 12)):
        inner = f"({drawn(random_, depth + 1)})" if depth < 4 and random_.random() < 0.2 else random_.choice(ATOMS)
        parts.append(inner + random_.choice(REPEATS))
    return "".join(parts)[:390]


def main(count: int, seed: int) -> int:
    random_, slowest, refused = random.Random(seed), (0.0, ""), 0
    for _ in range(count):
        pattern = ("re:" if random_.random() < 0.8 else "") + drawn(random_) * random_.choice((1, 1, 1, 5))
        start = time.process_time()
        try:
            found = matcher((pattern[:399],))
            for name in NAMES:
                found.matches(name)
        except InputError:
            refused += 1
        slowest = max(slowest, (time.process_time() - start, pattern))
    print(f"{count:,} patterns, {refused:,} refused; the slowest took {slowest[0]:.2f} s of CPU: {slowest[1][:120]}")
    return int(slowest[0] > 1.0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
