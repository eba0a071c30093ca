"""Commands as recipes print them: JSON without a shell's quotes, models that are in no catalogue."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trilemma as tl
from trilemma.ask.unknown_models import UnknownModel
from trilemma.commands.bare_json import quoted
from trilemma.errors import InputError

#: As vllm-project/recipes@8959cf64 renders it for Llama-3.3-70B on Blackwell.
RENDERED = (
    "vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 2 --max-num-batched-tokens 8192"
    ' --compilation-config {"pass_config": {"fuse_allreduce_rms":true,"eliminate_noops":true}} --max-model-len 8192'
)


def test_bare_json_is_one_word() -> None:
    answer = tl.check(RENDERED, gpu="gb200:2")
    assert answer.fits
    assert "unquoted-json" in {one.code for one in answer.warnings}
    assert "fuse_allreduce_rms" in (answer.command or "")


def test_quoted_json_is_left_alone() -> None:
    whole = f"vllm serve x --hf-overrides {shlex.quote(json.dumps({'a': {'b': 1}}))}"
    assert quoted(whole) == whole
    assert quoted('bash -c "vllm serve x --a {\\"b\\": 1}"') == 'bash -c "vllm serve x --a {\\"b\\": 1}"'


_PLAIN = st.integers() | st.text(max_size=8) | st.booleans()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(max_size=8), _PLAIN | st.lists(_PLAIN, max_size=3), min_size=1, max_size=3))
def test_any_bare_object_is_the_word_that_it_was(value: dict[str, object]) -> None:
    words = shlex.split(quoted(f"engine --flag {json.dumps(value)} --other=1"))
    assert [words[0], words[-1]] == ["engine", "--other=1"]
    assert json.loads(words[2]) == value


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=300))
def test_anything_else_keeps_its_letters(text: str) -> None:
    assert quoted(text).replace("'", "") == text.replace("'", "") or "{" in text or "[" in text


def test_a_model_that_is_not_known_leaves_its_flags_judged() -> None:
    with pytest.raises(
        UnknownModel, match=r"model not known, flags fine \(vllm [\d.]+ takes them all\); unknown model"
    ):
        tl.check("vllm serve made-up/Nothing-9B --tensor-parallel-size 2 --max-model-len 8192", gpu="h100-sxm:2")
    with pytest.raises(UnknownModel, match=r"flags in doubt: .*--max-modl-len; the nearest") as told:
        tl.check("vllm serve made-up/Nothing-9B --max-modl-len 8192", gpu="h100-sxm")
    assert len(told.value.doubted) == 1


def test_a_training_command_without_a_number_of_cards_is_told_with_the_card_that_was_named(tmp_path: Path) -> None:
    file = tmp_path / "qlora.yml"
    file.write_text(
        "base_model: NousResearch/Meta-Llama-3.1-8B\nadapter: lora\nlora_r: 16\nsequence_len: 2048\nmicro_batch_size: 1\n"
    )
    with pytest.raises(InputError, match=r"such as `gpu` rtx-4090:1 or rtx-4090:8"):
        tl.check(f"axolotl train {file}", gpu="rtx-4090")
    shown = tl.check(f"axolotl train {file}", gpu="rtx-4090:1").show(width=200)
    assert " · axolotl · one GPU" in shown.splitlines()[0]  # frameworks have no version to show


def test_a_deepspeed_file_that_is_not_there_is_asked_for_as_one() -> None:
    words = "deepspeed --num_gpus 8 train.py --deepspeed not_here.json --model_name_or_path facebook/opt-13b"
    with pytest.raises(InputError, match=r"not_here.json cannot be read: .*; name the DeepSpeed file"):
        tl.check(words, gpu="a100-sxm4-80gb:8")


@pytest.mark.parametrize(("name", "mix"), [("llama3.1:8b", "gguf-q4_k_m"), ("llama3.1:8b-instruct-q8_0", "gguf-q8_0")])
def test_a_name_of_an_engines_library_means_its_weights_there(name: str, mix: str) -> None:
    """ollama.com/library/llama3.1: 8b is 8b-instruct-q4_K_M, 4.9 GB; asked in words and as a command it is the same."""
    asked = tl.fit(name, "rtx-4090", engine="ollama")
    told = tl.check(f"ollama run {name}", gpu="rtx-4090")
    assert asked.command == told.command == f"ollama run {name}"
    assert asked.memory.total.value == pytest.approx(told.memory.total.value)
    assert any(mix in note for note in asked.question.model.assumptions)
    assert tl.fit(name, "rtx-4090", engine="ollama", precision="bf16").memory.total.value > 13e9


def test_weights_in_16_bits_are_named_as_the_file_that_holds_them() -> None:
    """ollama run hf.co/ORG/NAME takes repositories of GGUF files alone, and of these Q4_K_M (huggingface.co/docs/hub/ollama)."""
    asked = tl.fit("qwen3-8b", "rtx-4090", engine="ollama", precision="bf16")
    assert asked.memory.total.value > 14e9
    assert "FROM ./Qwen3-8B.gguf" in (asked.command or "")


@pytest.mark.parametrize(
    ("name", "tag", "gib"),
    [
        ("llama-3.1-8b", "llama3.1:8b", 4.58),
        ("llama-2-7b", "llama2:7b", 3.56),
        ("qwen3-30b-a3b", "qwen3:30b-a3b", 17.3),
    ],
)
def test_a_name_of_the_catalogue_means_what_the_library_pulls(name: str, tag: str, gib: float) -> None:
    """README.md of ollama/ollama: Llama 3.1 8B 4.9 GB and Llama 2 7B 3.8 GB, of which the embedding stays on the host."""
    asked, told = (tl.fit(word, "rtx-4090", engine="ollama") for word in (name, tag))
    assert asked.command == told.command == f"ollama run {tag}"
    weights, same = (float(answer.memory.ledger["weights"].bytes) for answer in (asked, told))
    assert weights == same
    assert weights == pytest.approx(gib * 2**30, rel=0.08)
    assert any(tag in note and "precision" in note for note in asked.question.model.assumptions)


def test_models_that_a_library_is_not_known_to_have_are_in_its_usual_mix() -> None:
    asked = tl.fit("afm-4.5b", "rtx-4090", engine="ollama")
    assert any("weights in q4_k_m" in note for note in asked.question.model.assumptions)
    same = tl.fit("afm-4.5b", "rtx-4090", engine="ollama", precision="q4_k_m")
    assert asked.memory.total.value == same.memory.total.value
    encoder = tl.fit("bge-m3", "rtx-4090", engine="ollama")  # the library has it in 16 bits
    assert encoder.question.model.quantization is None
