"""Words of any kind end in a plan or in one line that names the remedy, on every serving engine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilemma import engines
from trilemma.engines.base import EngineCommand
from trilemma.errors import InputError

_HEADS = {
    "sglang": ["sglang", "serve"],
    "tensorrt-llm": ["trtllm-serve"],
    "llama.cpp": ["llama-server"],
    "transformers-serve": ["transformers", "serve"],
}
_HOSTILE = st.sampled_from(
    [
        "",
        "-",
        "--",
        "=",
        "-1",
        "1e999",
        "nan",
        "9" * 40,
        "{",
        '{"a":',
        "true",
        "\0",
        "a\nb",
        "$(x)",
        "--x" * 200,
        "é" * 50,
        "0",
    ]
)


def _words(name: str) -> st.SearchStrategy[list[str]]:
    table = engines.get(name).flags()  # type: ignore[attr-defined]
    spellings = sorted({f"--{flag}" for flag in table.flags} | set(table.shorts) | set(table.negatives))
    word = st.one_of(st.sampled_from(spellings), _HOSTILE, st.text(max_size=12), st.integers(-5, 2**40).map(str))
    return st.lists(word, max_size=12)


@pytest.mark.parametrize("name", list(_HEADS))
@given(data=st.data())
@settings(max_examples=120)
def test_any_words(name: str, data: st.DataObject) -> None:
    words = data.draw(_words(name))
    words = [word for word in words if word not in ("--config", "--extra-llm-api-options", "--extra_llm_api_options")]
    message, command = "", None
    try:
        command = engines.get(name).read([*_HEADS[name], "org/model", *words])
    except InputError as error:
        message = " ".join(str(error).split())
    assert len(message) < 1000
    assert message or isinstance(command, EngineCommand)


@pytest.mark.parametrize("name", list(_HEADS))
@given(data=st.data())
@settings(max_examples=80)
def test_plans_that_are_read_are_written_or_refused(name: str, data: st.DataObject) -> None:
    words = data.draw(_words(name))
    words = [word for word in words if word not in ("--config", "--extra-llm-api-options", "--extra_llm_api_options")]
    engine = engines.get(name)
    try:
        command = engine.read([*_HEADS[name], "org/model", *words])
        written = engine.write(model="org/model", plan=command.plan)
    except InputError:
        return
    again = engine.read([word for word in written if word not in ("--extra_llm_api_options", "trtllm.yaml")])
    assert again.plan.pool.layout.gpus >= 1
