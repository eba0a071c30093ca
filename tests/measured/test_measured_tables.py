"""Reading measured tables: what is recognised, what is refused, in one line that names the file and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from trilemma.errors import InputError
from trilemma.measured import tables
from trilemma.measured.tables import Row, UnusableRow, read_table

MEMORY = "id,engine,model,gpu,tp,weights_gib_per_gpu,kv_cache_gib_per_gpu,kv_cache_tokens,outcome"


def write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        (MEMORY, "serving-memory"),
        ("model,gpu,isl,osl,metric,value,tier", "serving-speed"),
        ("model,gpu,measured_metric,value", "training"),
        ("gpu,engine,version,op,dtype,shape,latency_us", "kernels"),
    ],
)
def test_kind_is_recognised_by_columns(tmp_path: Path, header: str, kind: str) -> None:
    assert read_table(write(tmp_path, header + "\n")).kind.name == kind


def test_cells_are_stripped_and_empty_ones_absent(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, f"\ufeff{MEMORY}\n a ,vllm, m ,g,1,,2.5,,ok\n\n"))
    assert [row.id for row in table.rows] == ["a"]
    assert table.rows[0].cells == {
        "id": "a", "engine": "vllm", "model": "m", "gpu": "g", "tp": "1", "kv_cache_gib_per_gpu": "2.5", "outcome": "ok"
    }  # fmt: skip


def test_quoted_cells_may_hold_commas_and_line_breaks(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, f'{MEMORY}\na,vllm,"m,\nn",g,1,,,,ok\nb,vllm,m,g,1,,,,ok\n'))
    assert table.rows[0].text("model") == "m,\nn"
    assert [row.line for row in table.rows] == [3, 4]


def test_row_without_id_is_named_by_its_line(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, f"{MEMORY}\n,vllm,m,g,1,,,,ok\n"))
    assert table.rows[0].id == "line 2"


def test_ragged_row_is_left_out_with_the_reason(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, f"{MEMORY}\na,vllm\nb,vllm,m,g,1,,,,ok\n"))
    assert table.broken == (("line 2", "2 cells where the header has 9"),)
    assert [row.id for row in table.rows] == ["b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (MEMORY.encode() + b"\nx\0y\n", "NUL bytes"),
        (MEMORY.encode() + b"\n\xff\xfe\n", "is not UTF-8"),
        (b"model,gpu,model\n", "'model' appears twice"),
        (b"model,gpu,isl,osl,metric\n", "nearest is serving-speed, which also needs the columns value"),
        (b"a,b\n1,2\n", "not a measured table that is known here"),
        ((MEMORY + "\n" + "x" * 200_000).encode(), "is not CSV"),
        (",".join(f"c{i}" for i in range(2000)).encode(), "2000 columns"),
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        read_table(write(tmp_path, content))
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(InputError, match=r"cannot be read: (No such file|Is a directory)"):
            read_table(path)


def test_size_and_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, MEMORY + "\n" + "a,vllm,m,g,1,,,,ok\n" * 20)
    monkeypatch.setattr(tables, "MOST_ROWS", 10)
    with pytest.raises(InputError, match="more than 10 rows"):
        read_table(path)
    monkeypatch.setattr(tables, "MOST_BYTES", 100)
    with pytest.raises(InputError, match="larger than"):
        read_table(path)


def row(**cells: str) -> Row:
    return Row(id="r", line=1, cells=cells)


def test_numbers_read_with_bounds() -> None:
    assert row(x="1,024.5").number("x", low=0, high=2000) == 1024.5
    assert row().number("x", low=0, high=1) is None
    assert row(x="8.0").whole("x", low=1, high=10) == 8
    assert row(x="True").flag("x") is True
    assert row(x="no").flag("x") is False
    assert row().flag("x") is None


@pytest.mark.parametrize(
    ("cells", "read", "reason"),
    [
        ({"x": "nan"}, "number", "x 'nan' is not a finite number"),
        ({"x": "-inf"}, "number", "not a finite number"),
        ({"x": "much"}, "number", "x 'much' is not a number"),
        ({"x": "-3"}, "number", "outside 0 to 100"),
        ({"x": "1e99"}, "number", "outside 0 to 100"),
        ({"x": "2.5"}, "whole", "not a whole number"),
        ({"x": "maybe"}, "flag", "neither True nor False"),
    ],
)
def test_absurd_cells_make_the_row_unusable(cells: dict[str, str], read: str, reason: str) -> None:
    one = row(**cells)
    with pytest.raises(UnusableRow, match=reason):
        one.flag("x") if read == "flag" else getattr(one, read)("x", low=0, high=100)
