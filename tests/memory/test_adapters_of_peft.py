"""How PEFT holds adapters and what it makes of a model that bitsandbytes quantised, against what scripts do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trilemma.engines.training import TrainingCommand, owner_of, read_training
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import TrainingMemory, training_memory
from trilemma.quantities import GIB

_LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
_QLORA = (
    f"--model_name_or_path {_LLAMA} --load_in_4bit --use_peft --lora_r 32 --lora_target_modules all-linear"
    " --per_device_train_batch_size 1 --gradient_checkpointing --bf16 --attn_implementation flash_attention_2"
)
#: Vocabulary x hidden of Llama 3.1 8B, and weights of adapters of rank 1 on every linear layer.
_MATRIX = 128_256 * 4096
_RANK_ONE = 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))


def read(words: str) -> TrainingCommand:
    split = words.split()
    return read_training(owner_of(split) or "transformers", split, gpus=1)


def memory(command: TrainingCommand, card: str = "rtx-4090") -> TrainingMemory:
    assert command.architecture is not None
    return training_memory(command.architecture, Cluster.of(find(card), 1), command.plan, command.workload)


def line(found: TrainingMemory, name: str) -> float:
    return sum(float(one.bytes) for one in found.ledger if one.name == name)


def test_embedding_and_head_of_a_quantised_model_are_in_fp32() -> None:
    """huggingface/peft other.py, prepare_model_for_kbit_training: all that is not in 4 or 8 bits goes to FP32; autocast keeps a
    BF16 copy of the output matrix until backward. TRL puts both back to BF16 (peft_module_casting_to_bf16)."""
    plain, trl = (memory(read(f"python {script} {_QLORA} --max_length 2048")) for script in ("train.py", "sft.py"))
    assert line(plain, "weights") - line(trl, "weights") == pytest.approx(_MATRIX * (2 + 2 + 2), rel=0.001)
    # So the sum that layers add to is in FP32 too: 4 bytes a token, hidden value and layer instead of 2.
    twice = line(memory(read(f"python train.py {_QLORA} --max_length 4096")), "activations") - line(
        plain, "activations"
    )
    assert twice / 2048 == pytest.approx(32 * 4096 * 4, rel=0.15)


@pytest.mark.parametrize(("length", "card", "fits"), [
    # unslothai/unsloth README: the longest context of "Hugging Face + FA2" is 5,789 tokens on 24 GB, 28,454 on 80.
    (5200, "rtx-4090", True), (8000, "rtx-4090", False), (25000, "a100-sxm4-80gb", True), (34000, "a100-sxm4-80gb", False),
])  # fmt: skip
def test_longest_contexts_of_the_trainer(length: int, card: str, fits: bool) -> None:
    found = memory(read(f"python train.py {_QLORA} --max_length {length}"), card)
    assert (float(found.device_bytes) < float(find(card).runtime_total().value)) is fits


@pytest.mark.parametrize(("words", "width"), [
    (f"llamafactory-cli train --stage sft --do_train --model_name_or_path {_LLAMA} --finetuning_type lora --lora_target all"
     " --lora_rank 64 --bf16", 4),
    (f"llamafactory-cli train --stage sft --do_train --model_name_or_path {_LLAMA} --finetuning_type lora --lora_target all"
     " --lora_rank 64 --pure_bf16", 2),
    (f"python sft.py --model_name_or_path {_LLAMA} --dtype bfloat16 --bf16 --use_peft --lora_r 64 --lora_target_modules"
     " all-linear", 4),
    (f"python sft.py --model_name_or_path {_LLAMA} --load_in_4bit --bf16 --use_peft --lora_r 64 --lora_target_modules"
     " all-linear", 2),
])  # fmt: skip
def test_adapters_are_in_fp32_unless_the_trainer_says_otherwise(words: str, width: int) -> None:
    """PEFT's cast_adapter_dtype; LLaMA-Factory's pure_bf16; TRL casts those on quantised weights to BF16 (sft_trainer.py)."""
    found = memory(read(words), "h100-sxm")
    assert line(found, "adapter") == pytest.approx(64 * _RANK_ONE * width, rel=0.001)


def test_moments_of_adapters_are_in_eight_bits() -> None:
    """bitsandbytes keeps 32 bits of tensors below 4,096 values alone, and of embeddings; adapters are larger."""
    found = memory(read(f"python train.py {_QLORA} --max_length 2048 --optim adamw_bnb_8bit"))
    assert line(found, "optimizer") == pytest.approx(32 * _RANK_ONE * 2, rel=0.1)


_SCRIPT = """from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
model, tokenizer = FastLanguageModel.from_pretrained(model_name='unsloth/Meta-Llama-3.1-8B-Instruct', max_seq_length={length},
                                                     load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=32, use_gradient_checkpointing={kind})
trainer = SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=1, optim='adamw_8bit', max_length={length}))
"""


@pytest.mark.parametrize(("length", "card", "fits"), [
    # unslothai/unsloth README: 78,475 tokens on 24 GB, 153,977 on 40, 342,733 on 80.
    (70_000, "rtx-4090", True), (100_000, "rtx-4090", False), (140_000, "a100-sxm4-40gb", True),
    (300_000, "a100-sxm4-80gb", True), (400_000, "a100-sxm4-80gb", False),
])  # fmt: skip
def test_longest_contexts_of_unsloth(tmp_path: Path, length: int, card: str, fits: bool) -> None:
    """Inputs of layers wait on the host (use_gradient_checkpointing="unsloth"), logits are never whole."""
    script = tmp_path / "u.py"
    script.write_text(_SCRIPT.format(length=length, kind="'unsloth'"))
    found = memory(read_training("unsloth", ["python", str(script)], gpus=1), card)
    assert (float(found.device_bytes) < float(find(card).runtime_total().value)) is fits


def test_inputs_of_layers_wait_on_the_host_where_a_word_says_so(tmp_path: Path) -> None:
    script = tmp_path / "u.py"
    held = []
    for kind in ("True", "'unsloth'"):
        script.write_text(_SCRIPT.format(length=65536, kind=kind))
        held.append(memory(read_training("unsloth", ["python", str(script)], gpus=1)))
    away = line(held[0], "activations") - line(held[1], "activations")
    assert away == pytest.approx(65536 * 4096 * 2 * 32, rel=0.15)
    assert float(held[1].host_bytes) > 14 * GIB
