"""What was measured stands in an accelerator file that every question takes, and no known card loses its calibration by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.measuring.machine_file import PROCESSOR, device, measurement

import trilemma as tl
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.measuring.card_file import card_text, compared, known_card
from trilemma.report.measured_card import measured_document, render_measured

#: What such cards reach: 794 of 989 TFLOP/s (github.com/stas00/ml-engineering@744d01e compute/accelerator/README.md).
H100 = {"products_bf16_flops_per_s": 794e12, "stream_bf16_bytes_per_s": 2.8e12, "copy_bytes_per_s": 2.9e12}


def written(folder: Path, values: dict[str, float], name: str = "mine.toml", **options: object) -> str:
    path = folder / name
    path.write_text(card_text(measurement(values, **options)), encoding="utf-8")  # type: ignore[arg-type]
    return str(path)


def test_a_known_card_keeps_its_calibration(tmp_path: Path) -> None:
    file = written(tmp_path, H100)
    card = find(file)
    assert card.id == card.measured_as == "nvidia-h100-sxm5-80gb"
    assert card.measured["products_bf16_flops_per_s"].value == 794e12
    asked = {"isl": 1024, "osl": 128, "concurrency": 16}
    mine, theirs = (tl.fit("llama-3.1-8b", gpu, **asked).to_dict()["speed"] for gpu in (file, "h100-sxm"))
    assert mine == theirs
    mine, theirs = (
        tl.fit("llama-3.1-8b", gpu, seq=4096, global_batch=8).to_dict()["speed"] for gpu in (f"{file}:8", "h100-sxm:8")
    )
    assert mine == theirs
    total = card.runtime_total_bytes
    assert total is not None
    assert total.value == pytest.approx(79.1 * 2**30)
    assert total.alternatives[0].value == 85029615043


def test_a_slower_copy_of_a_known_card_is_slower(tmp_path: Path) -> None:
    """A power cap that takes 40 % off the products takes it off the first token of a long prompt."""
    slow = written(tmp_path, H100 | {"products_bf16_flops_per_s": 0.6 * 794e12})
    assert find(slow).peak_flops["bf16"].value == pytest.approx(0.6 * 989.4e12, rel=0.01)
    asked = {"isl": 16384, "osl": 8, "concurrency": 1}
    mine, theirs = (
        tl.fit("llama-3.1-8b", gpu, **asked).to_dict()["speed"]["ttft_ms"]["value"] for gpu in (slow, "h100-sxm")
    )
    assert mine > 1.35 * theirs


def test_a_card_that_nothing_tells_of_is_timed_at_its_own_rates(tmp_path: Path) -> None:
    file = written(tmp_path, PROCESSOR, of=device("cpu", "A processor", 24, None))
    card = find(file)
    assert card.own_rates["stream_bf16_bytes_per_s"] == 16e9
    answer = tl.fit("qwen3-0.6b", file, engine="transformers", isl=128, osl=32, concurrency=1).to_dict()
    layers, head = 28, 151_936 * 1024 * 2
    read = (
        28 * 15_730_944 * 2 + head
    )  # bytes of a layer of Qwen3-0.6B: 1024 x (2048 + 1024 + 1024) + 2048 x 1024 + 3 x 1024 x 3072 + norms
    least = 1e3 * (read / 16e9 + layers * 200e-6 + 600e-6)
    assert answer["speed"]["tpot_ms"]["value"] == pytest.approx(least, rel=0.05)
    step = tl.fit(
        "qwen3-0.6b", file, engine="transformers", seq=256, global_batch=1, precision="pure-bf16", zero=0
    ).to_dict()
    lines = {line["name"]: line["seconds"] for line in step["speed"]["lines"]}
    assert lines["linear"] == pytest.approx(6 * 256 * 28 * 15_728_640 / 480e9, rel=0.05)
    assert lines["launches"] == pytest.approx(28 * 1e-3, rel=0.01)


def test_rates_are_told_beside_those_of_the_catalogue() -> None:
    found = measurement(H100)
    known = known_card(found.device)
    assert known is not None
    assert compared(found, known)["products_bf16_flops_per_s"] == 989.4e12
    assert "80%" in render_measured(found, known)
    document = measured_document(found, known, "file")
    assert document["card"] == "nvidia-h100-sxm5-80gb"
    assert document["figures"][0]["catalogue"] == 989.4e12
    assert known_card(device("cpu", "A processor", 24, None)) is None
    assert known_card(device("cuda", "NVIDIA X999", 24, 9.9)) is None


@pytest.mark.parametrize("same", ["nvidia-x999", "../accelerators/nvidia-h100-sxm5-80gb"])
def test_a_file_that_says_it_is_another_card(tmp_path: Path, same: str) -> None:
    text = card_text(measurement(H100)).replace('measured_as = "nvidia-h100-sxm5-80gb"', f'measured_as = "{same}"')
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(InputError, match="is no card of the catalogue"):
        find(str(tmp_path / "odd.toml"))


def test_nothing_measured_makes_no_file() -> None:
    with pytest.raises(InputError, match="no matrix product was measured"):
        card_text(measurement({"copy_bytes_per_s": 1e9}, device("cpu", "A processor", 24, None)))
