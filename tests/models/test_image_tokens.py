"""Tokens of an image are those that the families' own preprocessors make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilemma.errors import InputError
from trilemma.models.image_tokens import image_tokens
from trilemma.models.resolve import load_model

#: Tokens of 1280 x 960, 4000 x 3000, 224 x 224 and 640 x 1900 pixels by the functions of transformers 5.24.0 (smart_resize with
#: pixel limits of the checkpoints; get_aspect_ratio_preserving_size; _num_image_tokens; get_best_fit; navit_resize) with markers
BY_TRANSFORMERS = {
    "qwen2.5-vl-7b": (1566, 15303, 66, 1566),
    "qwen3-vl-8b": (1202, 11752, 66, 1182),
    "gemma-3-12b": (260, 260, 260, 260),
    "gemma-4-31b": (268, 268, 258, 254),
    "pixtral-12b": (3120, 3120, 210, 1472),
    "mistral-small-3.1-24b": (1645, 2352, 72, 1100),
    "llama-4-scout": (1887, 1887, 147, 1887),
    "kimi-k2.5": (1613, 4203, 67, 1567),
}
SIZES = ((1280, 960), (4000, 3000), (224, 224), (640, 1900))


@pytest.mark.parametrize("name", BY_TRANSFORMERS)
def test_tokens_are_those_of_the_preprocessor(name: str) -> None:
    model = load_model(name)
    assert tuple(image_tokens(model, *size).tokens for size in SIZES) == BY_TRANSFORMERS[name]


def test_tiles_of_internvl() -> None:
    """transformers 5.24.0, models/got_ocr2/image_processing_got_ocr2.py, get_optimal_tiled_canvas; 256 tokens a tile of 448."""
    tower = {"layers": 24, "hidden": 1024, "heads": 16, "patch": 14, "image": 448, "merge": 2, "out": 4096}
    model = replace(load_model("qwen2.5-vl-7b"), family="internvl_chat", vision=tower)
    assert [image_tokens(model, *size).tokens for size in SIZES] == [3330, 3330, 258, 3330]


def test_a_commands_own_pixels_are_followed() -> None:
    model = load_model("qwen2.5-vl-7b")
    assert image_tokens(model, 4000, 3000, changed={"max_pixels": 1280 * 28 * 28}).tokens <= 1280 + 2
    assert image_tokens(model, 4000, 3000, changed={"max_pixels": "x", "fps": 2}).tokens == 15303


@settings(deadline=None)
@given(width=st.integers(10, 8000), height=st.integers(10, 8000), name=st.sampled_from(sorted(BY_TRANSFORMERS)))
def test_no_image_is_larger_than_the_largest(width: int, height: int, name: str) -> None:
    model, proportion = load_model(name), max(width, height) / min(width, height)
    if proportion > 200:
        return
    found = image_tokens(model, width, height)
    assert 1 <= found.tokens <= 16384 + 200
    assert found.span <= found.patches
    assert found.source


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("llama-3.1-8b", (64, 64), "reads text alone"),
        ("llama-3.2-11b-vision", (64, 64), "not known here"),
        ("qwen3-vl-8b", (0, 64), "out of range"),
        ("qwen3-vl-8b", (64, 2**20), "out of range"),
        ("qwen3-vl-8b", (10, 8000), "times as long as wide"),
    ],
)
def test_what_cannot_be_is_one_line(name: str, size: tuple[int, int], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        image_tokens(load_model(name), *size)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["max_patches", "max_dynamic_patch"])
def test_more_tiles_than_an_image_has_are_refused(name: str) -> None:
    """Grids of tiles are tried one by one: a billion of them would never end."""
    model = load_model("llama-4-scout")
    tower = {"layers": 34, "hidden": 1408, "heads": 16, "patch": 14, "image": 336, "merge": 2, "out": 4096}
    for family in ("internvl_chat", model.family):
        tiled = replace(model, family=family, vision=tower)
        assert image_tokens(tiled, 1000, 10, changed={name: 1024}).tokens > 0
        with pytest.raises(InputError, match=f"{name} 1000000000 is out of range; give 1 to 1,024 tiles"):
            image_tokens(tiled, 1000, 10, changed={name: 10**9})
