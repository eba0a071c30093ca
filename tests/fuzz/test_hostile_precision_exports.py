"""Hostile names, plans and configurations, fed to every writer of quantisation files: nothing foreign runs, all of it parses.

``TRILEMMA_ATTACKS`` documents each (default 25), as in `test_hostile_exports`; the real command writes them.
"""

from __future__ import annotations

import json
import random
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_hostile_exports import ATTACKS, PAYLOADS, TEXTS, nothing_foreign_runs, tools_in

from trilemma.cli.main import main
from trilemma.precision.export import TARGETS

#: A dense model of two layers, and a plan that every target can write in some form.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "num_hidden_layers": 2,
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024,
    "max_position_embeddings": 2048,
}  # fmt: skip
PRESETS = {
    "compressed-tensors": ("fp8", "w4a16"), "llm-compressor": ("fp8", "w4a16"), "autoround": ("w4a16",),
    "modelopt": ("fp8", "nvfp4"), "torchao": ("fp8",), "bitsandbytes": ("nf4", "bnb-int8"), "llama-quantize": ("q4_k_m", "q8_0"),
}  # fmt: skip
#: Places of words in a plan file, as keys from its top.
PLACES = (
    ("name",),
    ("about",),
    ("kv_cache",),
    ("rules", 0, "weights"),
    ("rules", 0, "activations"),
    ("rules", 0, "roles", 0),
)
MODULES = (".*up_proj", "model.layers.0.*", "*down*")


def names(draw: random.Random) -> str:
    """What a folder may be called."""
    payload = draw.choice(PAYLOADS if draw.random() < 0.8 else TEXTS).replace("/", "_").replace("\x00", "_")
    return "".join(sign for sign in f"m{payload}" if not "\ud800" <= sign <= "\udfff")[:60].strip(".") or "m"


def plan_file(draw: random.Random, target: str) -> dict[str, Any]:
    weights, activations = (
        ("q4_k", "bf16") if target == "llama-quantize" else draw.choice((("fp8_channel", "fp8"), ("int4_g128", "own")))
    )
    plan: dict[str, Any] = {
        "name": "p",
        "rules": [
            {"roles": ["ffn"], "weights": weights, "activations": activations},
            {"roles": ["*"], "weights": "own"},
        ],
    }  # fmt: skip
    for place in draw.sample(PLACES, draw.choice((0, 1, 1, 2))):
        node: Any = plan
        for key in place[:-1]:
            node = node[key]
        payload = draw.choice(PAYLOADS if draw.random() < 0.7 else TEXTS)
        node[place[-1]] = payload if draw.random() < 0.5 or place[-1] not in node else f"{node[place[-1]]}{payload}"
    if draw.random() < 0.4:
        plan["rules"].insert(0, {"modules": [draw.choice(MODULES) + draw.choice(PAYLOADS)], "weights": weights})
    return plan


def safe(path: Path, tools: Path) -> None:
    """The file parses as what it is, and flags are words of one command."""
    folder = path.parent
    if path.suffix == ".txt":
        text = path.read_text(encoding="utf-8")
        (folder / "serve.sh").write_text(f"vllm serve model {text}", encoding="utf-8")
        shlex.split(text)
    elif path.suffix in (".yaml", ".yml"):
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
    elif path.suffix == ".json":
        assert isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    nothing_foreign_runs(folder, tools)


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_plans_and_models_write_nothing_that_runs(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools, draw, wrote = tools_in(tmp_path / "tools"), random.Random(target), 0
    for number in range(ATTACKS):
        folder, out = tmp_path / f"{number}" / names(draw), tmp_path / "out"
        folder.mkdir(parents=True)
        config = dict(CONFIG)
        if draw.random() < 0.3:
            config[draw.choice(("_name_or_path", "model_type", "hidden_act", "architectures"))] = draw.choice(
                PAYLOADS + TEXTS
            )
        (folder / "config.json").write_text(json.dumps(config))
        words = ["--preset", draw.choice(PRESETS.get(target, ("fp8", "w4a16")))]
        if draw.random() < 0.6:
            file = folder / "plan.json"
            file.write_text(json.dumps(plan_file(draw, target)))
            words = ["--plan", str(file)]
        if draw.random() < 0.2:
            words += ["--kv-dtype", draw.choice(PAYLOADS)]
        code = main(["precision", "export", str(folder), *words, "--to", target, "-o", str(out)])
        shown = capsys.readouterr()
        assert code in (0, 2), (number, shown.err)
        assert shown.err.count("\n") <= 2, shown.err
        assert all(sign.isprintable() or sign == "\n" for sign in shown.err + shown.out)
        if code == 0:
            wrote += 1
            (path,) = out.iterdir()
            safe(path, tools)
            shutil.rmtree(out)
        shutil.rmtree(folder.parent)
    assert wrote >= ATTACKS // 10, "nearly every document was refused: little was tried"


def test_flags_with_payloads_would_be_noticed(tmp_path: Path) -> None:
    """The judge itself: a script that does more than call its program fails it."""
    tools, folder = tools_in(tmp_path / "tools"), tmp_path / "out"
    folder.mkdir()
    (folder / "serve.sh").write_text("vllm serve model --kv-cache-dtype $(>ran)\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        nothing_foreign_runs(folder, tools)
    assert subprocess.run(["/bin/ls", str(folder)], capture_output=True, text=True, check=True).stdout.split() == [
        "ran",
        "serve.sh",
    ]
