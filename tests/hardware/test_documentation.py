"""The worked example of docs/adding-an-accelerator.md is a real file."""

import re
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.hardware import find, memory_warnings
from trilemma.quantities import GIB, MIB

PAGE = Path(__file__).parents[2] / "docs" / "adding-an-accelerator.md"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    path = tmp_path / "example-x1.toml"
    path.write_text(block, encoding="utf-8")
    return path


def test_the_example_loads(example: Path):
    card = find(str(example))
    assert card.id == "example-x1"
    assert card.peak("fp8").value == 360e12
    assert card.nvml_total_bytes.value == 46068 * MIB
    assert 43 * GIB < card.runtime_total().low < card.runtime_total().high < 45 * GIB
    assert [warning.code for warning in memory_warnings(card)] == ["memory-total-assumed"]


def test_the_example_explains_itself(example: Path, capsys):
    assert main(["hardware", str(example), "--explain"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "not 1,000 GB/s (rounded up): X1 product page, 2026-06" in text
    assert "(recalled)" in text


def test_every_key_of_the_reader_is_documented():
    from trilemma.hardware.strict_tables import SECTIONS

    page = PAGE.read_text(encoding="utf-8")
    for section, keys in SECTIONS.items():
        for key in keys:
            assert key in page, f"{section}.{key}"
