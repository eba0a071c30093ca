"""An engine's command behind everything that people put before it: its own words and nothing of the rest."""

from __future__ import annotations

import shlex

import pytest

from trilemma import engines
from trilemma.engines.extract import extract

SERVE = "vllm serve m/x --max-model-len 4096 -tp 2"
MODULE = "-m vllm.entrypoints.openai.api_server --model m/x --max-model-len 4096 -tp 2"
SGLANG = "-m sglang.launch_server --model-path m/x --context-length 4096 --tp 2"


@pytest.mark.parametrize(
    "command",
    [
        f"python -u {MODULE}",
        f"python3.11 {MODULE}",
        f"python3.12 -u -O {MODULE}",
        f"python -X dev -W ignore {MODULE}",
        f"/opt/venv/bin/python3 -u {MODULE}",
        f"/usr/bin/env python3 -u {MODULE}",
        f"python -u {SGLANG}",
        f"env VLLM_USE_V1=1 HF_HOME=/x {SERVE}",
        f"env -u FOO A=1 {SERVE}",
        f"nohup {SERVE} &",
        f"sudo -E {SERVE}",
        f"sudo -u vllm {SERVE}",
        f"time -p {SERVE}",
        f"uv run {SERVE}",
        f"uv run --with vllm python -u {MODULE}",
        f"uvx --from vllm {SERVE}",
        f"conda run -n vllm --no-capture-output python -u {MODULE}",
        f"numactl --cpunodebind=0 --membind=0 {SERVE}",
        f"taskset -c 0-15 nice -n 5 {SERVE}",
        f"stdbuf -oL {SERVE} 2>&1 | tee log",
        f"bash -c '{SERVE}'",
        f"bash -lc 'source /x/bin/activate && exec python -u {MODULE}'",
    ],
)
def test_own_words_alone(command: str) -> None:
    engine, words = extract(shlex.split(command))
    found = engines.get(engine).read(words)
    assert (found.model, found.plan.pool.options.context, found.plan.pool.layout.tp) == ("m/x", 4096, 2)
    assert found.unknown_flags == ()
    assert not found.warnings


@pytest.mark.parametrize(
    "command",
    [
        f"CUDA_VISIBLE_DEVICES=0,1 {SERVE}",
        f"env CUDA_VISIBLE_DEVICES=2,3 nohup python -u {MODULE} &",
        f"bash -lc 'export CUDA_VISIBLE_DEVICES=0,1; exec {SERVE}'",
        f"CUDA_VISIBLE_DEVICES=0,1 uv run python3.11 -u {SGLANG}",
    ],
)
def test_visible_cards_are_counted(command: str) -> None:
    engine, words = extract(shlex.split(command))
    assert engines.get(engine).read(words).facts["gpus_visible"] == 2
