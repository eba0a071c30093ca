"""How sure a verdict may be beside what it does not know: one rule for serving and training, every engine."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trilemma as tl
from trilemma.data.files import read_data
from trilemma.errors import PlanWarning
from trilemma.estimate.doubt import doubted, of_served_class, of_trained_class, share_of, with_warnings
from trilemma.estimate.estimate import Verdict
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model

CODES = {code: row for row in read_data("doubts.toml")["doubt"] for code in row["codes"]}
WARNINGS = st.lists(
    st.sampled_from([*CODES, "price", "assumed-load"]).map(lambda code: PlanWarning(code=code, message=""))
)


def test_every_code_that_is_doubted_is_told_somewhere() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in Path(tl.__file__).parent.rglob("*.py"))
    assert {code for code in CODES if f'"{code}"' not in sources} == set()


@given(WARNINGS, st.floats(0.5, 1), st.sampled_from(["ok", "oom_load"]))
def test_doubt_makes_no_verdict_surer_and_turns_none(warnings: list[PlanWarning], sure: float, stage: str) -> None:
    verdict = Verdict(stage=stage, probability=sure, reason="")  # type: ignore[arg-type]
    found = doubted(verdict, warnings)
    assert 0.5 <= found.probability <= sure
    assert found.probability == pytest.approx(doubted(verdict, [*reversed(warnings), *warnings]).probability)
    if any(share_of(one, fits=stage == "ok") for one in warnings):
        assert found.probability <= 0.99


def test_two_doubts_are_independent() -> None:
    """A fifth and an eighth of doubt leave 0.8 * 0.88 of what stands above even odds."""
    verdict = Verdict(stage="ok", probability=1.0, reason="")
    warnings = [PlanWarning(code="not-counted", message=""), PlanWarning(code="newer-engine", message="")]
    assert doubted(verdict, warnings).probability == pytest.approx(0.5 + 0.5 * 0.8 * 0.88)
    assert doubted(replace(verdict, measured=True), warnings).probability == 1.0


def test_what_only_adds_leaves_a_no_as_sure() -> None:
    no = Verdict(stage="oom_load", probability=0.999, reason="")
    assert doubted(no, [PlanWarning(code="not-counted", message="")]).probability == 0.999
    assert doubted(no, [PlanWarning(code="fork-version", message="")]).probability < 0.99


def test_warnings_told_twice_count_once() -> None:
    answer = tl.fit("qwen3-8b", gpu="h100-sxm", engine="vllm@0.40")
    assert "newer-engine" in {one.code for one in answer.warnings}
    again = with_warnings(answer, [one for one in answer.warnings if one.code == "newer-engine"])
    assert again.verdict.probability == answer.verdict.probability


@pytest.mark.parametrize(
    ("engine", "most"),
    [("vllm@0.19.0", 1.0), ("vllm", 0.985), ("vllm@0.40", 0.94), ("sglang@0.5.9", 0.96), ("llama.cpp", 0.95)],
)
def test_engines_that_few_logs_told_are_less_sure(engine: str, most: float) -> None:
    found = tl.fit("llama-3.1-8b", gpu="h100-sxm", engine=engine, context=8192).verdict
    assert found.stage == "ok"
    assert found.probability <= most + 1e-9
    assert found.probability > 0.8


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve Qwen/Qwen3-8B --max-model-len 8192 --some-new-option 3",
        "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --context-length 8192 --some-new-option 3",
    ],
)
def test_options_that_nobody_knows(command: str) -> None:
    plain = tl.check(command.partition(" --some")[0], gpu="h100-sxm")
    found = tl.check(command, gpu="h100-sxm")
    assert found.verdict.probability <= 0.9 < plain.verdict.probability


def test_weights_of_unstated_bits_are_a_range() -> None:
    """EXL3 stores 2 to 8 bits a weight and no name says how many: 16 bits are the most."""
    found = tl.fit("someone/Qwen3-8B-exl3", gpu="h100-sxm", context=8192)
    line = found.memory.ledger["weights"]
    assert float(line.low) < 0.3 * float(line.bytes)


def test_classes_that_nobody_measured() -> None:
    dense, card = load_model("llama-3.1-8b"), find("h100-sxm")
    assert of_served_class("vllm", dense, card) == []
    (few,) = of_served_class("tensorrt-llm", dense, card)
    (none,) = of_served_class("vllm", dense, find("mi300x"))
    assert few.message.startswith("1 start-up log ")
    assert none.message.startswith("no start-up log ")
    assert 0 < (few.share or 0) < (none.share or 0) <= 0.1
    assert of_trained_class("megatron", card, adapters=False) == []
    assert of_trained_class("deepspeed", card, adapters=False)
    assert not re.search("assumed", none.message)
