"""The fewest GPUs by class of model: 70B is trained whole on 16 H100 at least, 7B by QLoRA on one card of 24 GB."""

from __future__ import annotations

from typing import Any

import pytest

import trilemma as tl


@pytest.mark.parametrize(
    ("model", "card", "gpus", "more"),
    [
        # 16 bytes a parameter and activations: 2 x 80 GB hold 112 GB of 7B, 16 x 80 GB 1.1 TB of 70B
        ("llama-2-7b", "h100-sxm", 2, {}),
        ("llama-2-13b", "h100-sxm", 4, {}),
        ("llama-2-70b", "h100-sxm", 16, {}),
        ("mixtral-8x7b", "h100-sxm", 16, {}),
        ("llama-2-7b", "rtx-4090", 1, {"method": "qlora", "train": 1024, "global_batch": 16}),
    ],
)
def test_the_fewest_by_search(model: str, card: str, gpus: int, more: dict[str, Any]) -> None:
    asked = {"train": 2048, "global_batch": 1024, "by": "gpus", "include": card, **more}
    (first,) = tl.recommend(model, **asked).choices
    assert first.gpus == gpus
    assert first.estimate.fits


def test_a_spot_market_is_its_price_and_its_interruptions() -> None:
    job = {"train": 2048, "global_batch": 256, "tokens": "5B", "include": "h100-sxm"}
    firm, spot, often = (
        tl.recommend("llama-2-7b", **job, **more).choices[0]
        for more in (
            {"price": "h100-sxm=3"},
            {"price": "h100-sxm=1"},
            {"price": "h100-sxm=1", "mtbf": 20, "restart": 1200},
        )
    )
    assert firm.run_usd is not None
    assert spot.run_usd is not None
    assert often.run_usd is not None
    assert spot.run_usd.value == pytest.approx(firm.run_usd.value / 3, rel=1e-3)
    assert spot.run_usd.value < often.run_usd.value < firm.run_usd.value
