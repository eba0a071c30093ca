"""Methods of PEFT: what each keeps for gradients, against storages counted by hooks and peaks that were published."""

import pytest

from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.measured.tables import Row
from trilemma.measured.training.question import read_training_question
from trilemma.memory.activations import Shards, total_bytes
from trilemma.memory.adapters import adapter_methods, adapter_saved, find_adapter_method
from trilemma.memory.training import training_memory
from trilemma.models.resolve import load_model
from trilemma.plans import TrainingPlan
from trilemma.quantities import GIB
from trilemma.workloads import TrainingWorkload

LLAMA = load_model("llama-3.2-3b")
TARGETS = ("attention.q", "attention.v")
Q, V = (3072, 3072), (3072, 1024)  # in and out


def kept_megabytes(name: str, rank: int) -> float:
    """What 128 tokens keep in one layer, in FP32 without autocast."""
    workload = TrainingWorkload(seq=128, global_batch=1, method="lora", rank=rank, targets=TARGETS, adapter=name)
    layer = [one for one in LLAMA.tensors if one.layer == 0]
    saved = adapter_saved(layer, workload, casts=True, bits=32)
    return float(total_bytes(saved, Shards(tokens=128, seq=128), activation_bits=16)) / 1e6


@pytest.mark.parametrize(("name", "rank", "counted"), [
    # saved_tensors_hooks over one layer of Llama-3.2-3B with src/peft of huggingface/peft at 5d602fdb, MB beside the frozen
    # layer's (of deft without the matrices that it multiplies)
    ("lora", 32, 3.18), ("miss bat", 64, 103.81), ("lokr", 32, 56.62), ("peanut", 1, 103.83), ("waveft", 1, 103.98),
    ("c3a", 1, 3.15), ("deft", 32, 5.31), ("deft para", 32, 2.16), ("road", 1, 4.26), ("glora", 8, 25.95), ("beft", 1, 0.0),
    ("boft", 1, 115.43), ("oft", 32, 3.15),
])  # fmt: skip
def test_storages_are_those_that_hooks_count(name: str, rank: int, counted: float) -> None:
    assert kept_megabytes(name, rank) == pytest.approx(counted, rel=0.07, abs=0.05)


#: GiB that PyTorch reserved on an L40S (huggingface/peft method_comparison/MetaMathQA/results at 5d602fdb), trained parameters.
PUBLISHED = {
    "tinylora--llama-3.2-3B-default": (18.742, 3584), "miss--llama-3.2-3B-default": (18.879, 7340032),
    "miss--llama-3.2-3B-bat": (23.465, 7340032), "peanut--llama-3.2-3B-rank32-relu-depth0-s2.0": (23.482, 7340032),
    "waveft--llama-3.2-3B-n_frequency-5000": (23.186, 280000), "vera--llama-3.2-3B-default": (20.137, 129024),
    "lily--llama-3.2-3B-rank140-mlp-a2-b2-s8.0": (23.855, 9485280), "boft--llama-3.2-3B-default": (22.996, 802816),
    "deft--llama-3.2-3B-rank32-para": (20.037, 3670016), "prompt_tuning--llama-3.2-3B-default": (22.719, 614400),
    "ptuning--llama-3.2-3B-default": (19.484, 28382208), "road--llama-3.2-3B-lr_0.001": (21.254, 229376),
}  # fmt: skip


def published(run: str, trained: int) -> Row:
    cells = {
        "model": f"Llama-3.2-3B [{run.partition('--')[0]}]", "gpu": "L40S", "gpus": "1", "config_id": f"peft-{run}",
        "framework": "transformers 5.13.1 + PEFT 0.19.2.dev0", "precision": "BF16 (adapters fp32)", "seq_len": "768",
        "micro_batch": "4", "global_batch": "4", "recompute": "none", "measured_metric": "peak_memory_gib",
        "notes": f"max RESERVED memory; trainable params {trained}", "attention": "transformers default (sdpa)",
    }  # fmt: skip
    return Row(id=run, line=1, cells=cells)


@pytest.mark.parametrize("run", PUBLISHED)
def test_peaks_of_methods(run: str) -> None:
    measured, trained = PUBLISHED[run]
    asked = read_training_question(published(run, trained))
    found = training_memory(asked.model, asked.cluster, asked.plan, asked.workload).reserved
    assert found.value / GIB == pytest.approx(measured, rel=0.06)


def test_tokens_put_before_the_text_make_it_longer() -> None:
    asked = read_training_question(published("prompt_tuning--llama-3.2-3B-default", 200 * 3072))
    assert asked.workload.seq == 768 + 200
    behind_a_network = read_training_question(published("ptuning--llama-3.2-3B-default", 28382208))
    assert behind_a_network.workload.seq == 768 + 20
    assert read_training_question(published("miss--llama-3.2-3B-bat", 7340032)).workload.seq == 768


def test_names_are_found_by_their_words() -> None:
    assert find_adapter_method("llama boft default") is not find_adapter_method("llama oft default")
    assert find_adapter_method("Lora") is adapter_methods()[0]
    assert find_adapter_method("nobody's") is None
    load = TrainingWorkload(seq=768, global_batch=4, method="lora", rank=8, adapter="nobodys")
    plan, card = TrainingPlan(implementation="transformers", micro_batch=4), Cluster.of(find("l40s"), 1)
    with pytest.raises(InputError, match="adapter 'nobodys' is not known; use one of lora, "):
        training_memory(LLAMA, card, plan, load)
