"""Making a configuration small."""

from __future__ import annotations

import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.measured.activations.small_models import shrink, small_words
from trilemma.models import catalogue
from trilemma.models.read import model_from_config


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt2"])
def test_small_models_keep_their_kind(name: str) -> None:
    large = model_from_config(catalogue.config(name), name=name, source="")
    small = model_from_config(shrink(catalogue.config(name)), name=name, source="")
    assert small.family == large.family
    assert len(small.layers) == 2
    assert small.hidden <= 1024
    before, after = large.layers[0].mixer, small.layers[0].mixer
    assert type(before) is type(after)
    assert before.heads // before.kv_heads == after.heads // after.kv_heads  # type: ignore[union-attr]
    assert type(large.layers[0].ffn) is type(small.layers[0].ffn)


def test_something_else_is_an_error() -> None:
    with pytest.raises(InputError, match="states no hidden size"):
        shrink({"model_type": "llama"})


@pytest.mark.parametrize("bad", [["--seq", "0"], ["--layers", "-1"], ["--bar", "nan"], ["--dtype", "fp64"]])
def test_bad_numbers_exit_2(bad: list[str]) -> None:
    assert main(["measure", "activations", "llama-3.1-8b", *bad]) == 2


def test_what_is_left_of_a_model_is_said() -> None:
    whole = {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 151936}
    assert small_words(whole, shrink(whole, layers=4, hidden=512, vocab=8192)) == (
        "4 of 28 layers, 512 of 1,024 wide, 8,192 of 151,936 tokens"
    )
    assert small_words(whole, shrink(whole, layers=99, hidden=1024, vocab=200_000)) == "nothing left out"
