"""``trilemma hardware`` as a user meets it."""

import json
import subprocess
import sys

import pytest

from trilemma.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["hardware", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_table_shows_every_accelerator(capsys):
    from trilemma.hardware import all_accelerators

    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    for one in all_accelerators():
        assert one.id in out
    assert out.index("NVIDIA") < out.index("AMD")
    h100 = next(line for line in out.splitlines() if line.startswith("nvidia-h100-sxm5-80gb"))
    assert h100.split()[1:8] == ["79.2", "3.35", "989", "1,979", "–", "450", "700"]


def test_one_accelerator_in_full(capsys):
    code, out, _ = run(capsys, "mi300x")
    assert code == 0
    assert "FNUZ" in out
    assert "191.98 GiB" in out
    assert "5,300 GB/s" in out


def test_b300_explains_its_conflicts(capsys):
    """The INT8, FP4 and memory figures of B300 differ between sources: each claim is shown with why it was not taken."""
    code, out, _ = run(capsys, "b300-sxm", "--explain")
    assert code == 0
    text = " ".join(out.split())
    assert "peak int8: 153.5 TFLOP/s" in text
    assert "not 4,500 TFLOP/s (very likely copied from B200" in text
    assert "peak nvfp4: 13,500 TFLOP/s" in text
    for other in ("12,600", "13,125", "14,000", "15,000"):
        assert f"not {other} TFLOP/s" in text
    assert "memory, label: 288 GB" in text
    assert "not 270 GB" in text
    assert "memory, driver total: 268.59 GiB" in text
    assert "memory, runtime total: 267.69 GiB" in text
    assert "chosen because" in text


def test_json_is_one_document_in_base_units(capsys):
    code, out, err = run(capsys, "h100-sxm", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["schema"] == "trilemma/hardware@1"
    (entry,) = document["accelerators"]
    assert entry["id"] == "nvidia-h100-sxm5-80gb"
    assert entry["nvml_total_bytes"]["value"] == 81559 * 2**20
    assert entry["bandwidth_bytes_per_s"]["value"] == 3.35e12
    assert entry["bandwidth_bytes_per_s"]["source"]
    assert entry["runtime_total_bytes"]["assumed"] is False
    assert None not in entry.values()


def test_the_whole_catalogue_as_json(capsys):
    code, out, _ = run(capsys, "--json")
    entries = json.loads(out)["accelerators"]
    assert code == 0
    assert len(entries) >= 100
    assert all(isinstance(entry["bandwidth_bytes_per_s"], float) for entry in entries)


@pytest.mark.parametrize("name", ["h101", "h100", "no/such.toml", ""])
def test_bad_names_exit_with_two_and_one_line(capsys, name):
    code, out, err = run(capsys, name)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("trilemma: ")


def test_looking_up_one_name_parses_few_files():
    """A command that needs one accelerator must not pay for the catalogue."""
    script = (
        "import trilemma.hardware.catalogue as c, trilemma.hardware.reader as r\n"
        "calls = []\n"
        "real = r.parse_accelerator\n"
        "r.parse_accelerator = lambda *a, **k: calls.append(1) or real(*a, **k)\n"
        "c.find('h200-sxm'); c.find('rtx-4090'); print(len(calls))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 2
