"""``trilemma lint``: what never existed, trains nothing or cannot run is flagged; what is right is left alone; nothing is run."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trilemma as tl
from asking import document
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.linting.files import lint
from trilemma.report.schemas import schema_of

HERE = Path(__file__).parent
#: Files that are wrong, with the finding that says so; files that are right, with the public example they are written after.
WRONG = yaml.safe_load((HERE / "wrong.yaml").read_text(encoding="utf-8"))
RIGHT = yaml.safe_load((HERE / "right.yaml").read_text(encoding="utf-8"))
#: What runs and is old, or says what is the default: told, not held against the file.
NOTES = [
    ("a.py", "from transformers import AutoModelForVision2Seq\n", "AutoModelForVision2Seq is of transformers 4.57.3"),
    (
        "a.py",
        "from transformers import TrainingArguments\nTrainingArguments('o', warmup_ratio=0.03)\n",
        "warmup_ratio=",
    ),
    ("a.yaml", "base_model: x\nsequence_len: 1\nno_key_at_all_like_this: 1\n", "no_key_at_all_like_this"),
    ("a.py", "import transformer_engine.pytorch as te\nwith te.fp8_autocast(enabled=True):\n    pass\n", "te.autocast"),
    ("a.py", "import torch\nwith torch.cuda.amp.autocast():\n    pass\n", "torch.amp.autocast"),
    ("a.py", "from transformers import AutoModel\nm = AutoModel.from_pretrained('x', torch_dtype='auto')\n", "dtype="),
    ("a.sh", "vllm serve meta-llama/Llama-3.1-70B --dtype bfloat16\n", "leave it out"),
]
PIECES = st.sampled_from([line for row in (*WRONG, *RIGHT) for line in row["text"].splitlines()])
ENDINGS = st.sampled_from(["py", "sh", "yaml", "json", "toml", "ipynb", "txt"])
SLOW = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def linted(folder: Path, name: str, text: str, gpu: str | None = None) -> Any:
    path = folder / name
    path.write_text(text)
    return tl.lint(path, gpu=gpu)


def ends_well(path: Path) -> None:
    """Findings, or a refusal in one line."""
    with contextlib.suppress(InputError):
        for one in lint([path]).findings:
            assert "\n" not in one.claim


@pytest.mark.parametrize("row", WRONG, ids=[f"{at}-{row['told']}" for at, row in enumerate(WRONG)])
def test_what_is_wrong_is_flagged(row: dict[str, str], tmp_path: Path) -> None:
    found = linted(tmp_path, row["name"], row["text"])
    assert not found.fits
    mine = [one for one in found.findings if one.id == row["told"]]
    assert mine, [one.id for one in found.findings]
    assert any(row["words"] in f"{one.claim} " for one in mine)
    assert all(one.fix for one in mine)


@pytest.mark.parametrize("row", RIGHT, ids=[row["name"] for row in RIGHT])
def test_what_is_right_is_left_alone(row: dict[str, str], tmp_path: Path) -> None:
    found = linted(tmp_path, row["name"], row["text"])
    assert [(one.id, one.claim) for one in found.findings if one.severity != "context"] == []


def test_there_are_thirty_and_more() -> None:
    assert len(RIGHT) >= 30
    assert len({row["source"] for row in RIGHT}) >= 30


@pytest.mark.parametrize(("name", "text", "instead"), NOTES)
def test_what_is_old_is_a_note(name: str, text: str, instead: str, tmp_path: Path) -> None:
    found = linted(tmp_path, name, text)
    assert found.fits
    assert any(instead in f"{one.claim} {one.fix}" for one in found.findings)


def test_recipes_are_judged_for_a_named_card(tmp_path: Path) -> None:
    text = (
        "from transformer_engine.common.recipe import MXFP8BlockScaling, DelayedScaling\n"
        "r = MXFP8BlockScaling()\ns = DelayedScaling()\n"
        "from transformers import TrainingArguments\na = TrainingArguments('o', bf16=True)\n"
    )
    assert linted(tmp_path, "a.py", text).fits
    assert linted(tmp_path, "a.py", text, "b200").fits
    assert [one.evidence[0].line for one in linted(tmp_path, "a.py", text, "h100-sxm").findings] == [2]
    assert [one.evidence[0].line for one in linted(tmp_path, "a.py", text, "v100-sxm2-32gb").findings] == [2, 3, 5]


def test_a_notebook_is_its_cells(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": "import torch; torch.float8"},
        {"cell_type": "code", "source": ["%pip install torch\n", "import torch\n", "x = torch.quantize_dynamic(m)\n"]},
    ]
    found = linted(tmp_path, "a.ipynb", json.dumps({"cells": cells}))
    assert [one.id for one in found.findings] == ["api.never"]


def test_nothing_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    linted(tmp_path, "a.py", f"import pathlib\npathlib.Path({str(ran)!r}).touch()\nimport made_up_module_of_tests\n")
    with pytest.raises(InputError, match="not readable YAML"):
        linted(tmp_path, "a.yaml", f"a: !!python/object/apply:os.mkdir [{ran}]\n")
    linted(tmp_path, "a.sh", f"touch {ran}\nvllm serve $(touch {ran})\n")
    assert not ran.exists()
    assert "made_up_module_of_tests" not in sys.modules


def test_exit_codes_and_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "well.py").write_text(RIGHT[0]["text"])
    (tmp_path / "ill.py").write_text(WRONG[0]["text"])
    (tmp_path / "torn.py").write_text("def f(:\n")
    assert main(["lint", str(tmp_path / "well.py")]) == 0
    assert main(["lint", str(tmp_path / "ill.py")]) == 1
    shown = "".join(capsys.readouterr().out.split())
    assert "ill.py:2:error:torch.cuda.is_fp8_supportedneverexisted" in shown
    assert main(["lint", str(tmp_path / "torn.py")]) == 2
    assert "no Python: line 1" in capsys.readouterr().err
    assert main(["lint", str(tmp_path)]) == 1  # a folder: what cannot be read is told, not fatal
    assert "not read" in capsys.readouterr().out
    jsonschema.validate(document(f"lint {tmp_path / 'ill.py'}", code=1), schema_of("lint"))


@pytest.mark.parametrize(("name", "content"), [
    ("a.py", b"\xff\xfe\x00"), ("a.py", b"(" * 3000), ("a.py", b"x = " + b"-" * 100_000 + b"1"), ("a.py", b"\0"),
    ("a.json", b"[" * 100_000), ("a.json", b"{"), ("a.toml", b"a = ["), ("a.toml", b"a = " + b"[" * 5000),
    ("a.yaml", b"a: &a [*a]\n"), ("a.yaml", b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n!!python/x y"),
    ("a.yaml", b"{" * 5000), ("a.ipynb", b"{}"), ("a.py", b"#" * (5 << 20)), ("a.sh", b"'" + b"x" * 2_000_000),
])  # fmt: skip
def test_hostile_files_end_in_one_line(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["lint", str(path)]) in (0, 2)
    assert len(capsys.readouterr().err.splitlines()) <= 1


def test_long_files_of_commands_are_read_whole(tmp_path: Path) -> None:
    found = linted(
        tmp_path, "a.sh", "echo one two three\n" * 3000 + "vllm serve Qwen/Qwen3-8B \\\n  --max-modl-len 8\n"
    )
    assert [(one.id, one.evidence[0].line) for one in found.findings] == [("command.refused-flag", 3001)]
    many = linted(tmp_path, "a.py", "import torch\n" + "torch.cuda.no_such_name\n" * 3000)
    assert len(many.findings) == 1000


@SLOW
@given(st.lists(PIECES | st.text(max_size=30), max_size=25), ENDINGS)
def test_any_mixture_of_lines_ends_well(tmp_path: Path, lines: list[str], ending: str) -> None:
    path = tmp_path / f"file.{ending}"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    ends_well(path)


@SLOW
@given(st.binary(max_size=200), ENDINGS)
def test_any_bytes_end_well(tmp_path: Path, content: bytes, ending: str) -> None:
    path = tmp_path / f"file.{ending}"
    path.write_bytes(content)
    ends_well(path)
