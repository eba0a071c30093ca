"""What export writes is judged as the plan was: by check, by settle, in every precision, under loads of one and of many."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleets import apart, document, served

from trilemma.cli.main import main
from trilemma.engines import get
from trilemma.engines.extract import extract
from trilemma.engines.translation import for_engine
from trilemma.errors import InputError
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions

Captured = pytest.CaptureFixture[str]
LOAD = "--isl 2048 --osl 256"


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def fitted(folder: Path, capsys: Captured, words: str) -> dict[str, Any]:
    assert main(["fit", *words.split(), "--json"]) == 0
    text = capsys.readouterr().out
    (folder / "fit.json").write_text(text)
    answer: dict[str, Any] = json.loads(text)
    return answer


def exported(folder: Path, target: str, *, code: int = 0) -> Path:
    assert main(["export", str(folder / "fit.json"), "--to", target, "-o", str(folder / target)]) == code
    return folder / target


def run_of(prediction: dict[str, Any], **other: Any) -> dict[str, Any]:
    """The result that a bench writes when all is as predicted."""
    load, figures = prediction["workload"], prediction["predicted"]
    rate = load.get("rate")
    return {
        "completed": 100, "num_prompts": 100, "total_input_tokens": 100 * load["isl"],
        "total_output_tokens": 100 * load["osl"], "max_concurrency": None if rate else load["concurrency"],
        "request_rate": rate or "inf", "request_throughput": rate, "mean_ttft_ms": figures["ttft_ms"]["value"],
        "mean_tpot_ms": figures["tpot_ms"]["value"], **other,
    }  # fmt: skip


def settled(folder: Path, out: Path, capsys: Captured, result: dict[str, Any], *words: str) -> tuple[int, str, str]:
    (folder / "bench.json").write_text(json.dumps(result))
    capsys.readouterr()
    code = main(["settle", str(folder / "bench.json"), "--prediction", str(out / "prediction.json"), *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


PLANS = [
    ("llama-3.1-8b --gpu h100-sxm:2 --tp 2 --concurrency 16", "serve.sh"),
    ("llama-3.1-8b --gpu h100-sxm:2 --tp 1 --dp 2 --concurrency 16 --precision fp8", "serve.sh"),
    ("llama-3.1-8b --gpu h100-sxm:4 --tp 2 --dp 2 --concurrency 16 --precision awq --kv-dtype fp8", "serve.sh"),
    ("llama-3.1-70b-fp8 --gpu h100-sxm:8 --tp 2 --replicas 4 --rate 2 --precision awq", "serve-3.sh"),
    ("deepseek-v3 --gpu b200-sxm:8 --tp 1 --dp 8 --concurrency 64 --precision nvfp4", "serve.sh"),
    ("llama-3.1-8b --gpu h100-sxm:2 --pp 2 --concurrency 1 --precision q4_k_m --engine llama.cpp", "serve.sh"),
    ("llama-3.1-8b --gpu h100-sxm:2 --tp 2 --concurrency 16 --precision awq --engine sglang", "serve.sh"),
    ("deepseek-v3 --gpu b200-sxm:8 --tp 1 --dp 8 --ep --concurrency 64 --precision nvfp4 --engine tensorrt-llm", "serve.sh"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "script"), PLANS)
def test_check_and_settle_give_the_figures_of_the_plan(
    tmp_path: Path, capsys: Captured, words: str, script: str
) -> None:
    plan = fitted(tmp_path, capsys, f"{words} {LOAD}")
    gpu = shlex.split(words)[2]
    out = exported(tmp_path, plan["inputs"]["engine"]["name"])
    for name in (script, "kubernetes.yaml"):
        capsys.readouterr()
        assert main(["check", "--gpu", gpu, "--json", "--", str(out / name)]) == 0
        again = json.loads(capsys.readouterr().out)
        for figure in ("ttft_ms", "tpot_ms"):
            assert again["speed"][figure] == plan["speed"][figure]
        assert again["memory"]["total_bytes"] == plan["memory"]["total_bytes"]
    prediction = json.loads((out / "prediction.json").read_text())
    code, shown, _ = settled(tmp_path, out, capsys, run_of(prediction), "--json")
    assert code == 0
    for score in json.loads(shown)["scores"]:
        assert score["predicted"] == pytest.approx(plan["speed"][score["figure"]]["value"], rel=1e-5)
        assert score["inside"] is True


@pytest.mark.parametrize("target", ["vllm", "kubernetes", "llm-d", "sglang", "tensorrt-llm"])
def test_every_target_names_the_checkpoint_of_the_plan(tmp_path: Path, capsys: Captured, target: str) -> None:
    plan = fitted(tmp_path, capsys, f"llama-3.1-8b --gpu h100-sxm --precision gptq --concurrency 4 {LOAD}")
    assert plan["inputs"]["model"]["served_as"] in plan["command"]
    out = exported(tmp_path, target)
    said = capsys.readouterr().err
    assert "the plan needs a checkpoint converted to gptq of meta-llama/Llama-3.1-8B-Instruct: make or fetch it" in said
    managed = {"kubernetes": "kubernetes.yaml", "llm-d": "llm-d-serve.yaml"}.get(target)
    if managed is None:
        assert get(target).read(extract([str(out / "serve.sh")])[1]).model == "./Llama-3.1-8B-Instruct-gptq"
    text = (out / (managed or "kubernetes.yaml")).read_text()
    assert "/models/Llama-3.1-8B-Instruct-gptq" in text
    assert "meta-llama/" not in text
    workload = next(one for one in yaml.safe_load_all(text) if one["kind"] == "Deployment")
    mounts = workload["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert {"name": "model", "mountPath": "/models/Llama-3.1-8B-Instruct-gptq", "readOnly": True} in mounts


@pytest.mark.parametrize("target", ["vllm", "kubernetes", "llm-d", "sglang", "tensorrt-llm"])
def test_every_target_names_a_checkpoint_that_is_published(tmp_path: Path, capsys: Captured, target: str) -> None:
    published = "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4"
    plan = fitted(tmp_path, capsys, f"llama-3.1-8b --gpu h100-sxm --precision awq --concurrency 4 {LOAD}")
    assert published in plan["command"]
    out = exported(tmp_path, target)
    assert "make or fetch it" not in capsys.readouterr().err
    managed = {"kubernetes": "kubernetes.yaml", "llm-d": "llm-d-serve.yaml"}.get(target)
    if managed is None:
        assert get(target).read(extract([str(out / "serve.sh")])[1]).model == published
    assert published in (out / (managed or "kubernetes.yaml")).read_text()


def test_pools_keep_the_checkpoint_of_the_plan(tmp_path: Path, capsys: Captured) -> None:
    words = f"deepseek-v3 --gpu b200-sxm:8 --prefill 1xTP4 --decode 1xTP1DP4 --precision nvfp4 --concurrency 64 {LOAD}"
    plan = fitted(tmp_path, capsys, words)
    out = exported(tmp_path, "vllm")
    capsys.readouterr()
    for rank in plan["ranks"]:
        assert main(["check", "--gpu", "b200-sxm:4", "--json", "--", str(out / f"serve-{rank['pool']}-1.sh")]) == 0
        memory = {item["name"]: item["bytes"] for item in json.loads(capsys.readouterr().out)["memory"]["items"]}
        assert memory["weights"] == pytest.approx(rank["memory"]["weights"])


@pytest.mark.parametrize(
    ("target", "weights", "says"),
    [
        ("llama.cpp", "llama-3.1-8b --precision gptq", "llama.cpp does not load a checkpoint converted to gptq"),
        ("llama.cpp", "llama-3.1-8b --precision awq", "llama.cpp does not load weights in awq (hugging-quants/"),
        ("llama.cpp", "Qwen/Qwen3-8B-AWQ", "llama.cpp does not load weights in awq (Qwen/Qwen3-8B-AWQ)"),
        (
            "vllm",
            "llama-3.1-8b --precision q4_k_m --engine llama.cpp",
            "vllm does not load a checkpoint converted to gguf",
        ),
        (
            "tensorrt-llm",
            "llama-3.1-8b --precision fp8",
            "quantises to fp8 while loading, which tensorrt-llm does not",
        ),
        ("llama.cpp", "llama-3.1-8b --precision fp8", "quantises to fp8 while loading, which llama.cpp does not"),
    ],
)
def test_weights_that_another_engine_does_not_load_are_refused(
    tmp_path: Path, capsys: Captured, target: str, weights: str, says: str
) -> None:
    fitted(tmp_path, capsys, f"{weights} --gpu h100-sxm --concurrency 4 {LOAD}")
    exported(tmp_path, target, code=2)
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


# Load.


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_a_rate_is_measured_by_an_open_loop(tmp_path: Path, engine: str) -> None:
    content = document(served(engine, tp=2, replicas=15))
    content["inputs"]["workload"] = {"isl": 4096, "osl": 1024, "rate": 7.5}
    content["speed"] |= {"batch": 52.0, "request_ms": {"value": 104_000.0, "low": 1.0, "high": 2e6}}
    (tmp_path / "fit.json").write_text(json.dumps(content))
    out = exported(tmp_path, engine)
    prediction = json.loads((out / "prediction.json").read_text())
    assert prediction["workload"] == {"isl": 4096, "osl": 1024, "concurrency": 780, "rate": 7.5}
    assert "--request-rate 7.5 " in prediction["benchmark"]
    assert "concurrency" not in prediction["benchmark"]
    assert "--request-rate 7.5 " in (out / "benchmark.sh").read_text()


def test_without_a_time_of_requests_all_replicas_count(tmp_path: Path) -> None:
    content = document(served("vllm", tp=1, dp=2, ep=2, replicas=3))
    content["inputs"]["workload"] = {"isl": 4096, "osl": 1024}
    content["speed"]["batch"] = 5.5
    (tmp_path / "fit.json").write_text(json.dumps(content))
    prediction = json.loads((exported(tmp_path, "vllm") / "prediction.json").read_text())
    assert prediction["workload"]["concurrency"] == 33


def test_check_judges_engines_under_their_part_of_a_rate(tmp_path: Path, capsys: Captured) -> None:
    plan = fitted(tmp_path, capsys, f"llama-3.1-70b-fp8 --gpu h100-sxm:8 --tp 2 --replicas 4 --rate 2 {LOAD}")
    out = exported(tmp_path, "vllm")
    capsys.readouterr()
    assert main(["check", "--gpu", "h100-sxm:2", "--json", "--", str(out / "serve-2.sh")]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["inputs"]["workload"]["rate"] == 0.5
    assert again["speed"]["batch"] == plan["speed"]["batch"]
    assert "2 requests a second shared by 4 engines" in str(again["warnings"])


def test_settle_says_what_it_did_not_judge(tmp_path: Path, capsys: Captured) -> None:
    fitted(tmp_path, capsys, f"llama-3.1-8b --gpu h100-sxm --concurrency 16 {LOAD}")
    out = exported(tmp_path, "vllm")
    prediction = json.loads((out / "prediction.json").read_text())
    code, shown, said = settled(tmp_path, out, capsys, run_of(prediction, max_concurrency=4))
    assert code == 2
    assert "- not judged: another load: requests of 4 at once, predicted for 16" in shown
    assert said.startswith("trilemma: no run is of the load predicted (2048/256 tokens, 16 at once)")
    code, shown, said = settled(tmp_path, out, capsys, run_of(prediction))
    assert (code, "not judged" in shown, said) == (0, False, "")


def test_settle_of_a_rate_holds_runs_against_what_was_said_of_it(tmp_path: Path, capsys: Captured) -> None:
    fitted(tmp_path, capsys, f"llama-3.1-8b --gpu h100-sxm --rate 2 {LOAD}")
    out = exported(tmp_path, "vllm")
    prediction = json.loads((out / "prediction.json").read_text())
    slow = run_of(prediction, mean_tpot_ms=3 * prediction["predicted"]["tpot_ms"]["value"])
    code, shown, _ = settled(tmp_path, out, capsys, slow, "--json")
    assert code == 1
    by_figure = {score["figure"]: score for score in json.loads(shown)["scores"]}
    assert by_figure["tpot_ms"]["predicted"] == prediction["predicted"]["tpot_ms"]["value"]
    assert (by_figure["tpot_ms"]["inside"], by_figure["ttft_ms"]["inside"]) == (False, True)
    code, shown, _ = settled(tmp_path, out, capsys, run_of(prediction, request_rate=1.0, request_throughput=1.0))
    assert code == 2
    assert "arrivals of 1 a second, predicted for 2" in shown


@pytest.mark.parametrize("key", ["isl", "concurrency", "rate"])
@pytest.mark.parametrize("value", [0, -1, "NaN", "Infinity", "x"])
def test_a_prediction_of_no_load_is_refused(tmp_path: Path, capsys: Captured, key: str, value: Any) -> None:
    (tmp_path / "fit.json").write_text(json.dumps(document(served("vllm"))))
    out = exported(tmp_path, "vllm")
    prediction = json.loads((out / "prediction.json").read_text())
    result = run_of(prediction)
    prediction["workload"][key] = value
    (out / "prediction.json").write_text(
        json.dumps(prediction).replace('"NaN"', "NaN").replace('"Infinity"', "Infinity")
    )
    code, _, said = settled(tmp_path, out, capsys, result)
    assert code == 2
    assert "is not a prediction" in said


# Other engines.


def test_attention_replicas_over_common_experts_stay_so_in_other_engines(tmp_path: Path, capsys: Captured) -> None:
    fitted(tmp_path, capsys, f"deepseek-v3 --gpu b200-sxm:8 --tp 1 --dp 8 --precision nvfp4 --concurrency 64 {LOAD}")
    for target in ("sglang", "tensorrt-llm"):
        out = exported(tmp_path, target)
        found = get(target).read(extract([str(out / "serve.sh")])[1])
        assert found.plan.pool.layout == Layout(dp=8)
        capsys.readouterr()
        for name in ("serve.sh", "kubernetes.yaml"):
            assert main(["check", "--gpu", "b200-sxm:8", "--json", "--", str(out / name)]) == 0
            assert json.loads(capsys.readouterr().out)["fits"] is True


def _translated(layout: Layout, own: str, other: str, *, mixture: bool, **options: Any) -> Pool:
    requests = options.pop("requests", None)
    plan = Plan(engine=EngineRef(name=own), pools=(Pool(layout=layout, options=ServeOptions(**options), replicas=2),))
    return for_engine(plan, other, mixture=mixture, requests=requests).pool


def test_replicas_become_what_the_other_engine_has_for_them() -> None:
    spread = Layout(tp=2, dp=4, ep=8)
    assert _translated(spread, "vllm", "sglang", mixture=True).layout == spread
    assert _translated(Layout(dp=4), "vllm", "sglang", mixture=True).options.extra == {"enable-dp-attention": True}
    assert _translated(Layout(dp=4), "vllm", "sglang", mixture=False).options.extra == {}
    whole = _translated(Layout(tp=2, dp=4), "sglang", "vllm", mixture=True)
    assert (whole.layout, whole.replicas) == (Layout(tp=2), 8)
    dense = _translated(Layout(tp=2, dp=4), "vllm", "llama.cpp", mixture=False)
    assert (dense.layout, dense.replicas) == (Layout(pp=2), 8)
    experts = _translated(Layout(dp=4), "vllm", "llama.cpp", mixture=True)
    assert (experts.layout, experts.replicas) == (Layout(pp=4), 2)
    with pytest.raises(InputError, match="while loading"):
        _translated(Layout(), "vllm", "tensorrt-llm", mixture=False, quantization="fp8")


def test_llama_cpp_gets_a_cache_for_all_requests_of_one_engine(tmp_path: Path, capsys: Captured) -> None:
    fitted(tmp_path, capsys, f"llama-3.1-8b --gpu h100-sxm:4 --tp 1 --replicas 4 --concurrency 206 {LOAD}")
    out = exported(tmp_path, "llama.cpp")
    words = shlex.split((out / "serve-1.sh").read_text().replace("\\\n", " "))
    assert words[words.index("--parallel") + 1] == "52"
    assert words[words.index("--ctx-size") + 1] == str(52 * 2304)
    found = get("llama.cpp").read(extract([str(out / "serve-1.sh")])[1]).plan.pool.options
    assert (found.context, found.max_seqs) == (2304, 52)
    capped = _translated(Layout(), "vllm", "llama.cpp", mixture=False, max_seqs=16, requests=400.0)
    assert capped.options.max_seqs == 16


# Files named by scripts and manifests.


def test_files_that_scripts_and_manifests_name_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = served("tensorrt-llm", dp=8, ep=8)
    (tmp_path / "fit.json").write_text(json.dumps(document(plan)))
    out = exported(tmp_path, "tensorrt-llm")
    alone = exported(tmp_path, "kubernetes")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for path in (out / "serve.sh", out / "docker-run.sh", out / "kubernetes.yaml", alone / "kubernetes.yaml"):
        found = get("tensorrt-llm").read(extract([str(path)])[1])
        assert found.plan.pool.layout == plan.pool.layout
    assert "trtllm.yaml" not in {path.name for path in alone.iterdir()}


def test_one_engine_of_a_manifest_is_named(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "fit.json").write_text(json.dumps(document(apart())))
    values = str(exported(tmp_path, "llm-d") / "llm-d-values.yaml")
    for pool, gpus in (("prefill", 1), ("decode", 4)):
        found = get("vllm").read(extract([values], pool=pool)[1])
        assert found.plan.pool.layout == Layout(tp=gpus)
    with pytest.raises(InputError, match=r"starts 2 engines \(decode/vllm, prefill/vllm\); name one with --pool"):
        extract([values])
    with pytest.raises(InputError, match="starts 0 engines of serve"):
        extract([values], pool="serve")
    with pytest.raises(InputError, match="chooses an engine of a manifest"):
        extract(["vllm", "serve", "x"], pool="decode")
    capsys.readouterr()
    assert main(["check", "--gpu", "h200-sxm:4", "--pool", "decode", "--", values]) == 0
