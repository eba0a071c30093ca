"""Feed-forward blocks computed in tiles of the sequence: a tile's tensors live at a time, and its work is done twice."""

from pathlib import Path

import pytest
from training_plans import line_bytes, memory

from trilemma.engines.training import read_training
from trilemma.engines.training_files import training_files
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, TrainingPlan
from trilemma.plans.training import Recompute
from trilemma.timing.training_step import training_step
from trilemma.workloads import TrainingWorkload

_AXOLOTL = (
    "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 131072\nmicro_batch_size: 1\ntiled_mlp: true\n"
    "gradient_checkpointing: true\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nbf16: true\n"
)
_UNSLOTH = (
    "from unsloth import FastLanguageModel\n"
    "FastLanguageModel.from_pretrained('unsloth/Meta-Llama-3.1-8B-Instruct', max_seq_length=131072, unsloth_tiled_mlp=True)\n"
)


@pytest.mark.parametrize(("name", "inner", "layers"), [("llama-3.1-8b", 14336, 32), ("qwen2.5-14b", 13824, 48)])
def test_what_a_layer_keeps(name: str, inner: int, layers: int) -> None:
    """Megatron keeps gate, up and their product, three times the inner width in 16 bits a token; tiles keep none of it."""
    whole, tiled = (memory(name, seq=4096, dp=8, global_batch=8, mlp_tiles=tiles) for tiles in (1, 8))
    gone = line_bytes(whole, "activations") - line_bytes(tiled, "activations")
    assert gone == pytest.approx(3 * 2 * inner * 4096 * layers)


def test_one_layer_made_again_needs_a_tile() -> None:
    common = {"seq": 32768, "dp": 8, "global_batch": 8, "implementation": "deepspeed", "zero": 3}
    whole, tiled = (
        memory("qwen2.5-14b", recompute=Recompute(mode="full"), mlp_tiles=tiles, loss="fused", **common)  # type: ignore[arg-type]
        for tiles in (1, 16)
    )
    assert tiled.device_bytes < whole.device_bytes


def test_the_work_is_done_again() -> None:
    model, cluster, load = (
        load_model("llama-3.1-8b"),
        Cluster.of(find("h100-sxm"), 8),
        TrainingWorkload(seq=8192, global_batch=8),
    )
    whole, tiled = (
        training_step(model, cluster, TrainingPlan(layout=Layout(dp=8), mlp_tiles=tiles), load) for tiles in (1, 4)
    )
    assert 1.05 < tiled.step_s / whole.step_s < 1.35


@pytest.mark.parametrize("to", ["megatron", "torchtitan", "deepspeed", "accelerate"])
def test_files_are_refused_where_no_framework_sets_them_up(to: str) -> None:
    plan, load = TrainingPlan(layout=Layout(dp=8), mlp_tiles=4), TrainingWorkload(seq=4096, global_batch=8)
    with pytest.raises(InputError, match="mlp-tiles"):
        training_files(to=to, model=load_model("llama-3.1-8b"), plan=plan, workload=load, gpus_per_node=8)


@pytest.mark.parametrize(("framework", "words", "files", "tiles"), [
    # axolotl monkeypatch/tiled_mlp/patch.py: pieces of 32,768 tokens; unsloth's docs: ceil(tokens / hidden).
    ("axolotl", "axolotl train a.yml", {"a.yml": _AXOLOTL}, 4),
    ("axolotl", "axolotl train a.yml", {"a.yml": _AXOLOTL + "tiled_mlp_num_shards: 7\n"}, 7),
    ("axolotl", "axolotl train a.yml", {"a.yml": _AXOLOTL.replace("tiled_mlp: true\n", "")}, 1),
    ("unsloth", "python u.py", {"u.py": _UNSLOTH}, 32),
])  # fmt: skip
def test_trainers_that_run_feed_forward_blocks_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str, words: str, files: dict[str, str], tiles: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert read_training(framework, words.split(), gpus=1).plan.mlp_tiles == tiles
