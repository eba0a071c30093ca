"""The examples of docs/deploying.md run as a shell runs them, one block after the other in a folder of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "deploying.md"


@pytest.mark.slow
def test_examples_run_in_order(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert all(line.startswith("trilemma ") for block in blocks for line in block.splitlines())
    program = tmp_path / "bin" / "trilemma"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m trilemma "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-eu"],
        input="\n".join(blocks),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("my-host/serve.sh", "my-cluster/kubernetes.yaml", "my-pools/router.sh", "my-llm-d/llm-d-values.yaml"):
        assert (tmp_path / name).is_file()
    assert "judged for the load of prediction.json" in done.stdout


def test_every_target_is_told() -> None:
    from trilemma.engines.traits import those

    text = PAGE.read_text(encoding="utf-8")
    for target in (*those("deploys"), "kubernetes", "llm-d"):
        assert f"`{target}`" in text
