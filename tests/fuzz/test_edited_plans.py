"""Plans edited by hand and given to every writer: a value of another kind is refused in one line, never a crash.

`TRILEMMA_EDITS` says how many edited documents each writer is given (default 40).
"""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from trilemma.cli.main import main

EDITS = int(os.environ.get("TRILEMMA_EDITS", "40"))
SERVE = ("--isl", "1000", "--osl", "200", "--concurrency", "4")
TRAIN = ("--train", "4096", "--global-batch", "64")
WRITERS: dict[str, tuple[str, ...]] = {
    "vllm": ("fit", "qwen3-32b", "--gpu", "h100-sxm:2", "--draft", "eagle3:3:0.5", *SERVE),
    "sglang": ("fit", "qwen3-32b", "--gpu", "h100-sxm:2", "--engine", "sglang", *SERVE),
    "tensorrt-llm": ("fit", "qwen3-32b", "--gpu", "h100-sxm:2", "--engine", "tensorrt-llm", *SERVE),
    "llama.cpp": ("fit", "qwen3-14b", "--gpu", "rtx-4090", "--engine", "llama.cpp", "--precision", "Q4_K_M", *SERVE),
    "kubernetes": ("fit", "qwen3-32b", "--gpu", "h100-sxm:2", *SERVE),
    "megatron": ("fit", "llama-3.1-8b", "--gpu", "h100-sxm:8", *TRAIN),
}
#: Options whose values are objects or lists, with those of other engines: what a writer may take apart.
EXTRA = (
    "speculative-config", "compilation-config", "kv-transfer-config", "kv_cache_config", "cuda_graph_config",
    "hf-overrides", "limit-mm-per-prompt", "lora-modules", "enable-lora", "max-loras", "lora-paths", "split-mode", "tensor-split",
    "device", "n-gpu-layers", "override-tensor", "speculative_config", "moe_config", "attention_dp_config",
    "enable_attention_dp", "num-gpu-blocks-override", "kv-cache-dtype", "additional-config", "seed", "served-model-name",
    "main-gpu",    "max-cudagraph-capture-size", "cudagraph-capture-sizes", "json-model-override-args", "no-such-option",
)  # fmt: skip
JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**40, 1.5, 1e-308, 1e300, "", "a", "auto", "fp8", "\ud800", "a\nb", [], [[]], [1, 2], ["a"],
    [None], [{}], {}, {"a": 1}, {"method": []}, {"method": "mtp"}, {"cudagraph_capture_sizes": 3}, {"dtype": []}, {"": {}},
    {"batch_sizes": {}}, {"cudagraph_capture_sizes": []}, {"max_batch_size": "x"},
)  # fmt: skip


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("plans")
    found = {}
    for name, command in WRITERS.items():
        with pytest.MonkeyPatch.context() as patch, (folder / name).open("w", encoding="utf-8") as out:
            patch.setattr("sys.stdout", out)
            assert main([*command, "--json"]) in (0, 1)
        found[name] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a document but its root."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, value in inner for place in ((*path, key), *places(value, (*path, key)))]


def edited(document: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """``document`` with one to three places of its inputs of another kind or gone, or an option added."""
    found = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 2, 3))):
        pools = found["inputs"]["plan"].get("pools") if isinstance(found["inputs"].get("plan"), dict) else None
        if pools and draw.random() < 0.5:
            try:
                extra = pools[0]["options"].setdefault("extra", {})
                extra[draw.choice(EXTRA)] = copy.deepcopy(draw.choice(JUNK))
            except (TypeError, KeyError, AttributeError, IndexError):
                continue
            continue
        place = draw.choice([("inputs", *one) for one in places(found["inputs"])] or [("inputs",)])
        node: Any = found
        for key in place[:-1]:
            node = node[key]
        if draw.random() < 0.2 and isinstance(node, dict):
            del node[place[-1]]
        else:
            node[place[-1]] = copy.deepcopy(draw.choice(JUNK))
        if not isinstance(found["inputs"], dict):
            break
    return found


@pytest.mark.parametrize("writer", WRITERS)
def test_edited_plans_are_written_or_refused(
    writer: str, plans: dict[str, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(f"{writer} edits")
    for turn in range(EDITS):
        document = edited(plans[writer], draw)
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        code = main(["export", str(file), "--to", writer, "-o", str(tmp_path / f"out{turn}")])
        told = capsys.readouterr()
        assert code in (0, 2), (turn, code, told.err, document["inputs"])
        if code == 2:
            assert told.err.strip().count("\n") == 0, told.err
            assert told.err.rstrip("\n").isprintable(), told.err
