"""What would make a plan fit really makes it fit when it is fed back."""

from __future__ import annotations

import re
import shlex

import pytest

from trilemma import check, engines, fit, plan
from trilemma.estimate.serving import estimate
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.parameters import weight_bytes
from trilemma.models.published import checkpoints, published_as
from trilemma.models.quantized import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.question import Question
from trilemma.search import Constraints
from trilemma.search.nearest import nearest_miss
from trilemma.search.remedies import remedies
from trilemma.workloads import Serving

CASES = [
    ("deepseek-r1", "h100-sxm", 8, 163840),
    ("llama-3.1-70b", "h100-sxm", 2, 131072),
    ("llama-3.1-8b", "rtx-4090", 1, 131072),
    ("qwen3-32b", "l40s", 1, 40960),
    ("mixtral-8x7b", "a100-sxm4-40gb", 2, 32768),
]


def ask(name, gpu, gpus, context):
    model, card = load_model(name), find(gpu)
    workload = Serving(context=context)
    plan = Plan(pools=(Pool(layout=Layout(tp=gpus), options=ServeOptions(context=context)),))

    def evaluate(changed, changed_model):
        cluster = Cluster.of(card, int(changed.pool.layout.gpus))
        return estimate(Question(model=changed_model, cluster=cluster, workload=workload, plan=changed))

    failing = evaluate(plan, model)
    assert not failing.fits
    found = remedies(evaluate, failing.question, gpus=gpus, failing=failing)
    return model, evaluate, found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[3]}")
def test_each_command_fits_when_fed_back(case):
    model, evaluate, found = ask(*case)
    assert len(found) == 3
    assert [one.cost_rank for one in found] == sorted(one.cost_rank for one in found)
    for remedy in found:
        words = shlex.split(remedy.flags)
        if words[0] != "vllm":
            continue  # on another engine: see below
        command = engines.get("vllm").read(words)
        scheme = words[2].rpartition("-")[2] if words[2].startswith("./") else None
        on_load = command.plan.pool.options.quantization
        run = requantize(model, scheme or on_load) if scheme or on_load else load_model(words[2])
        assert evaluate(command.plan, run).fits, remedy.flags


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "engine"),
    [
        ("qwen3-32b", "rtx-4090", 1, "vllm"),
        ("gpt-oss-120b", "rtx-4090", 2, "vllm"),
        ("llama-3.1-70b", "h100-sxm", 2, "sglang"),
        ("llama-3.1-8b", "rtx-3060-12gb", 1, "vllm"),
        ("qwen3-14b", "l4", 1, "sglang"),
        ("gemma-3-27b", "a10", 1, "vllm"),
        pytest.param("deepseek-r1", "b200", 2, "vllm", marks=pytest.mark.slow),
        pytest.param("llama-3.3-70b", "rtx-5090", 1, "vllm", marks=pytest.mark.slow),
        pytest.param("qwen3-30b-a3b", "rtx-4090", 1, "tensorrt-llm", marks=pytest.mark.slow),
        pytest.param("mistral-small-24b", "mi100", 1, "vllm", marks=pytest.mark.slow),
    ],
)
def test_every_remedy_said_to_fit_does_as_a_command_of_its_own(model, gpu, gpus, engine):
    answer = fit(model, f"{gpu}:{gpus}", engine=engine)
    assert not answer.fits
    assert answer.remedies
    for remedy in answer.remedies:
        counted = re.match(r"(\d+) GPUs", remedy.change)
        again = check(remedy.flags, gpu=f"{gpu}:{counted[1] if counted else gpus}")
        assert again.fits, (remedy.change, remedy.flags, again.verdict.reason)
        assert "--" not in remedy.change


def test_another_engine_comes_before_more_cards_and_says_what_it_costs():
    changes = fit("gpt-oss-120b", "rtx-4090:2").remedies
    first = changes[0]
    assert first.change.startswith("llama.cpp instead of vLLM")
    assert "memory of the host" in first.change
    assert "tokens/s a request" in first.effect
    assert "requests beyond" in first.quality
    bought = next(one for one in changes if re.match(r"\d+ GPUs", one.change))
    assert re.search(r"\$\d+\.\d\d an hour instead of \$\d+\.\d\d", bought.effect)
    on_cards = [one for one in fit("qwen3-32b", "rtx-4090", context=4096).remedies if "llama.cpp" in one.change]
    assert "q4_k_m" in on_cards[0].change  # 19 GB of 32 billion weights lie on a card of 24
    assert "host" not in on_cards[0].change


def test_a_published_checkpoint_is_named_instead_of_a_conversion():
    told = [one for one in fit("qwen3-32b", "rtx-4090", context=4096).remedies if "published" in one.change]
    assert "Qwen/Qwen3-32B-AWQ" in told[0].flags
    best = plan("qwen3-32b", "b200:1", serve="4096/1024")
    assert "nvidia/Qwen3-32B-NVFP4" in best.best.command
    assert "./" not in "".join(one.command or "" for one in best.plans)
    assert "huggingface.co/nvidia/Qwen3-32B-NVFP4" in str(best)
    assert fit("qwen3-32b", "b200", precision="nvfp4").command.split()[2] == "nvidia/Qwen3-32B-NVFP4"
    own_base = plan("meta-llama/Llama-3.1-70B", "h100-sxm:4", serve="4096/1024")  # nobody is offered another model
    assert not any("Instruct" in (one.command or "") for one in own_base.plans)


def test_a_checkpoint_of_the_own_publisher_comes_first_then_one_that_leaves_the_cache_open():
    named = {scheme: published_as(load_model("llama-3.3-70b"), scheme) for scheme in ("fp8", "nvfp4")}
    # amd's and nvidia's FP8 ask for an FP8 cache, RedHat's does not; of NVFP4 there is one that does
    assert [one and one.name for one in named.values()] == [
        "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "nvidia/Llama-3.3-70B-Instruct-NVFP4",
    ]  # fmt: skip
    own = published_as(load_model("qwen3-32b"), "fp8")
    assert own is not None and own.name == "Qwen/Qwen3-32B-FP8"  # noqa: PT018


@pytest.mark.parametrize("at", range(0, len(checkpoints()), 9))
def test_published_checkpoints_are_of_the_model_that_they_name(at):
    for one in checkpoints()[at : at + 9]:
        stored, whole = load_model(one.id), load_model(one.of)
        assert (len(stored.layers), stored.hidden, stored.vocab) == (len(whole.layers), whole.hidden, whole.vocab), one
        assert weight_bytes(stored) < 0.95 * weight_bytes(whole), one
        assert one.seen


def test_deepseek_r1_on_eight_h100_needs_fewer_bits_or_more_gpus():
    _, _, found = ask("deepseek-r1", "h100-sxm", 8, 163840)
    assert any("the published awq checkpoint" in one.change for one in found)
    assert any(one.change.startswith("16 GPUs") for one in found)
    assert "lower" in found[0].quality or found[0].quality == "unchanged"


def test_a_shorter_context_is_told_before_quantisation():
    _, _, found = ask("llama-3.1-70b", "h100-sxm", 2, 131072)
    assert found[0].change.startswith("context of ")
    assert found[0].quality.startswith("answers unchanged, requests beyond ")


def test_a_context_that_the_load_needs_is_never_cut():
    answer = nearest_miss(
        load_model("qwen3-32b"),
        Cluster.of(find("rtx-4090"), 1),
        Serving(isl=30000, osl=2000),
        fixed=Constraints(),
        engine=EngineRef(),
    )
    assert answer.remedies
    assert not any("context of" in one.change for one in answer.remedies)


def test_a_change_that_may_not_fit_says_its_chance() -> None:
    """Layers of a 32B on the host of an RTX 3090 were told to fit; the line they came with was as likely not to."""
    words = "llama-server -hf bartowski/Qwen2.5-32B-Instruct-GGUF:Q4_K_M -c 32768 -ngl 99 -fa on"
    told = check(words, gpu="rtx-3090").to_dict()["remedies"]
    assert told
    for one in told:
        gpus = 2 if "2 GPUs" in one["change"] else 1
        chance = check(one["flags"], gpu=f"rtx-3090:{gpus}").to_dict()["verdict"]["probability"]
        assert (f"{chance:.0%} sure" in one["effect"]) == (chance < 0.9), one["effect"]
