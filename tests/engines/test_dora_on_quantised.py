"""DoRA beside weights that bitsandbytes quantised: its magnitudes and outputs are counted, the base stays in 4 bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import trilemma as tl

#: Outputs of all linear layers of Llama-3.1-8B: queries, keys, values, output, gate, up and down of 32 layers (its config.json).
_OUTPUTS = 32 * (4096 + 1024 + 1024 + 4096 + 14336 + 14336 + 4096)

_TRAINER = (
    "python train.py --model_name_or_path meta-llama/Llama-3.1-8B --use_peft --load_in_4bit --lora_r 16 --bf16"
    " --lora_target_modules all-linear --per_device_train_batch_size 1 --max_length 2048 --use_dora {dora}"
)
_AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_target_linear: true
peft_use_dora: {dora}
sequence_len: 2048
micro_batch_size: 1
bf16: true
"""
_FACTORY = """model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
finetuning_type: lora
quantization_bit: 4
lora_rank: 16
lora_target: all
use_dora: {dora}
bf16: true
cutoff_len: 2048
per_device_train_batch_size: 1
output_dir: out
"""


def _lines(command: str) -> Mapping[str, float]:
    found = tl.check(command, gpu="l40s:1").to_dict()
    return {line["name"]: float(line["bytes"]) for line in found["memory"]["items"]}


@pytest.mark.parametrize("which", ["trainer", "axolotl", "llama-factory"])
def test_magnitudes_stand_beside_a_base_of_four_bits(which: str, tmp_path: Path) -> None:
    """Liu et al. 2024 (arXiv 2402.09353): one magnitude for each output. The flag did nothing beside a quantised base."""
    told = []
    for dora in ("false", "true"):
        file = tmp_path / f"{dora}.yaml"
        file.write_text((_AXOLOTL if which == "axolotl" else _FACTORY).format(dora=dora), encoding="utf-8")
        command = {
            "trainer": _TRAINER.format(dora=dora), "axolotl": f"axolotl train {file}",
            "llama-factory": f"llamafactory-cli train {file}",
        }[which]  # fmt: skip
        told.append(_lines(command))
    plain, with_dora = told
    assert with_dora["weights"] == plain["weights"]
    assert (with_dora["adapter"] - plain["adapter"]) in (2 * _OUTPUTS, 4 * _OUTPUTS)  # in 16 bits or 32
    assert sum(with_dora.values()) > sum(plain.values())
