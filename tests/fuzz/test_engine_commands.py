"""Hostile commands, manifests, logs and documents: an `InputError` or an answer, in bounded time and memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trilemma.commands.bounded_yaml import load_all
from trilemma.commands.shell_words import split_commands
from trilemma.diagnosis.start_log import start_in
from trilemma.engines.extract import extract
from trilemma.engines.vllm.flags import table
from trilemma.engines.vllm.read import read
from trilemma.engines.vllm.write import write
from trilemma.errors import InputError
from trilemma.plans.document import plan_from_document, plan_to_document

words = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "vllm", "serve", "docker", "run", "exec", "compose", "-f", "bash", "-c", "python", "-m", "vllm/vllm-openai:v1",
            "vllm.entrypoints.openai.api_server", "&&", "|", "2>&1", ">", "--", "-", "=", "A=B", "--gpus", "-e", "env",
            "--entrypoint", "$X", "${X:-y}", "\\", "kubectl", "-O", "-O3", "-tp", "8", "--config", "--no-", "--x.y.z",
        ]
    ),
    st.sampled_from(sorted(table().flags)).map(lambda name: f"--{name}"),
    st.tuples(st.sampled_from(sorted(table().flags)), st.text(max_size=8)).map("=".join).map(lambda word: f"--{word}"),
    st.sampled_from(['{"a":1}', '{"method":"mtp"}', "[1,2]", "NaN", "1e999", "-1", "0", "9" * 30, "null", "1.5K", "image=2"]),
)  # fmt: skip


def answered(function: Callable[[Any], Any], argument: Any) -> None:
    """The call returns or refuses in one line."""
    message = ""
    try:
        function(argument)
    except InputError as error:
        message = " ".join(str(error).split())
    assert len(message) < 800


@given(st.lists(words, max_size=12))
def test_any_words_are_extracted_or_refused(argv: list[str]) -> None:
    answered(extract, argv)


@given(st.lists(words, max_size=12))
def test_any_flags_are_read_or_refused(argv: list[str]) -> None:
    answered(read, ["vllm", "serve", "m", *argv])
    answered(read, argv)


@given(st.lists(words, max_size=8))
def test_what_was_read_can_be_written_or_is_refused(argv: list[str]) -> None:
    with suppress(InputError):
        found = read(["vllm", "serve", "m", *argv])
        document = json.loads(json.dumps(plan_to_document(found.plan)))
        assert plan_from_document(document) == found.plan
        again = read(write(model=found.model, plan=found.plan))
        assert again.plan.pools == found.plan.pools


@given(st.text(st.sampled_from("ab \n\\'\"$(){}|&;<>#=-2"), max_size=60))
def test_any_shell_text_is_split(text: str) -> None:
    for command in split_commands(text):
        assert command


@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    answered(extract, [str(path)])
    answered(read, ["vllm", "serve", "m", "--config", str(path)])
    answered(start_in, str(path))
    script = tmp_path / "file.sh"
    script.write_bytes(content)
    answered(extract, [str(script)])


BILLION = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(12)
)
MERGES = "a: &a {k: 1}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{','.join(['*' + chr(97 + i)] * 10)}]}}\n" for i in range(12)
)


@pytest.mark.parametrize(
    "text",
    [
        BILLION, MERGES, "&a [*a]", "a: *b", "[" * 100_000, "{a: " * 10_000, "- " * 100_000, "x\n" * 500_000,
        "? " * 5_000, "a: !!python/object/apply:os.system [false]", "a: " + "9" * 10_000, "\0", "%YAML 9.9\n---\na",
        "a: 2001-99-99", "- &x y\n" * 60_000, "{? [a]: b}", "? {a: b}\n: c", "a: !!float x", "{[]: {}}",
    ],
    ids=range(19),
)  # fmt: skip
def test_yaml_bombs(tmp_path: Path, text: str) -> None:
    before = time.perf_counter()
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    with pytest.raises(InputError):
        extract([str(path)])
    with suppress(InputError):
        read(["vllm", "serve", "m", "--config", str(path)])
    assert time.perf_counter() - before < 10


def test_aliases_within_bounds_are_fine() -> None:
    assert load_all("a: &a [1, 2]\nb: *a\nc: {<<: {d: 1}}", name="x") == [{"a": [1, 2], "b": [1, 2], "c": {"d": 1}}]


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        ["x"] * 5000,
        ["x" * 2_000_000],
        ["vllm serve m " + "-tp 2 " * 100_000],
        ["vllm serve m '" + "a" * 900_000],
        ["bash -c " * 50 + "vllm serve m"],
        ["bash", "-c", "bash -c \"bash -c 'bash -c x'\""],
        ["vllm serve m --a" + ".b" * 50_000 + " 1"],
        ["vllm serve m --speculative-config" + ".b" * 50_000 + " 1"],
        ["vllm serve m --speculative-config " + "[" * 100_000],
        ["vllm serve m --hf-overrides " + '{"a":' * 100_000],
        ["vllm serve m --max-model-len " + "9" * 500_000],
        ["vllm serve m --limit-mm-per-prompt " + "a=1," * 100_000],
        ["vllm serve m --cudagraph-capture-sizes " + "1," * 200_000],
        ["vllm serve m -cc '" + '{"cudagraph_capture_sizes": [' + "1," * 50_000 + "1]}'"],
        ["docker run " + "-v a:b " * 1500 + "image"],
        ["A=" + "$A" * 100_000 + " vllm serve $A$A$A$A"],
        ["a.yaml", "\0.yaml"],
        ["\0.yaml"],
        ["/dev/zero.yaml"],
    ],
    ids=range(19),
)
def test_huge_commands_end_quickly(argv: list[str]) -> None:
    before = time.perf_counter()

    def both(argument: list[str]) -> None:
        read(extract(argument)[1])

    answered(both, argv)
    assert time.perf_counter() - before < 10


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_any_json_as_a_plan(document: Any) -> None:
    answered(plan_from_document, document)
    answered(plan_from_document, {"engine": {"name": "vllm"}, "pools": [document]})
    pool = {"role": "serve", "layout": {}, "options": {"extra": document}, "draft": {"method": "x", "tokens": document}}
    answered(plan_from_document, {"engine": {"name": "vllm"}, "pools": [pool]})
