"""Files, charts and documents: what is written for other programs, of plans that meet the branches of the writers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any
from unittest.mock import patch

from figures import LOADS, TRAINED

from trilemma.cli.main import main
from trilemma.engines import deployer
from trilemma.engines.deployment import kubernetes, llm_d, llm_d_chart, scripts
from trilemma.engines.training_files import training_files
from trilemma.errors import InputError
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions, TrainingPlan, recipe
from trilemma.plans.frameworks import those
from trilemma.workloads import TrainingWorkload

OPTIONS = ServeOptions(context=8192, max_seqs=64, memory_fraction=0.9)
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23", "tensorrt-llm": "1.2.1", "llama.cpp": "b6170"}


def _served(engine: str, replicas: int = 1, version: str | None = None, **layout: int) -> Plan:
    pool = Pool(layout=Layout(**layout), options=OPTIONS, replicas=replicas)
    return Plan(engine=EngineRef(name=engine, version=version or VERSIONS[engine]), pools=(pool,))


def _apart(engine: str, prefill: Mapping[str, int], decode: Mapping[str, int], *, many: int = 2) -> Plan:
    pools = (
        Pool(role="prefill", layout=Layout(**prefill), options=OPTIONS, replicas=many),
        Pool(role="decode", layout=Layout(**decode), options=replace(OPTIONS, kv_dtype="fp8"), replicas=many),
    )
    return Plan(engine=EngineRef(name=engine, version=VERSIONS[engine]), pools=pools)


FLEETS = {
    "one": _served("vllm", tp=2),
    "replicas": _served("sglang", tp=2, replicas=3),
    "two": _served("vllm", replicas=2),
    "attention data parallel": _served("tensorrt-llm", dp=4, ep=4),
    "layers": _served("llama.cpp", pp=2),
    "many llamas": _served("llama.cpp", replicas=2),
    "replicas of a layout": _served("tensorrt-llm", tp=2, replicas=2),
    "nodes": _served("vllm", tp=8, pp=2),
    "nodes of sglang": _served("sglang", tp=16),
    "experts over nodes": _served("vllm", dp=16, ep=16, replicas=2),
    "ray": _served("vllm", tp=16, version="0.10.0"),
    "nodes of tensorrt": _served("tensorrt-llm", tp=16),
    "pools": _apart("vllm", {"tp": 1}, {"tp": 4}),
    "single pools": _apart("vllm", {"tp": 2}, {"tp": 2}, many=1),
    "pools over nodes": _apart("sglang", {"tp": 1}, {"tp": 16}),
    "pools of tensorrt": _apart("tensorrt-llm", {"tp": 1}, {"tp": 4}),
    "pools of experts": _apart("vllm", {"dp": 8, "ep": 8}, {"dp": 16, "ep": 16}),
}


def deployments() -> str:
    """Every file of a fleet on machines, in containers, on Kubernetes and llm-d, on NVIDIA's and AMD's cards."""
    text = ""
    for name, plan in FLEETS.items():
        for maker, per_node, card in (("nvidia", 8, "H200 SXM"), ("amd", 4, None)):
            text += f"## {name}, {maker}, {per_node}\n"
            for write in (
                scripts.host_files,
                scripts.docker_files,
                kubernetes.manifests,
                llm_d.files,
                llm_d_chart.values,
            ):
                more = {"card": card} if write in (kubernetes.manifests, llm_d.files) else {}
                try:
                    fleet = deployer(plan.engine.name)(
                        model="Qwen/Qwen3-32B", plan=plan, version=None, maker=maker, per_node=per_node, latent=False
                    )
                    text += f"notes {fleet.notes}\n" if write is scripts.host_files else ""
                    files = write(fleet, **more)  # type: ignore[operator]
                except InputError as error:
                    text += f"# {write.__name__}: {error.flags}\n"
                    continue
                text += "".join(f"# {path}\n{content}" for path, content in sorted(files.items()))
    return text


def trainings() -> str:
    """The files of trainings for every framework that is written for; of each change to a plan the lines that are new."""
    text = ""
    for to in those("writer"):
        plain = TrainingPlan(layout=Layout(dp=8), recipe=recipe("bf16"), implementation=to, zero=3)
        seen: set[str] = set()
        for change, load in [*((one, {}) for one in TRAINED), *(({}, one) for one in LOADS)]:
            for model in ("llama-3.1-8b", "qwen3-30b-a3b"):
                try:
                    plan = replace(plain, **{**change, "implementation": to})
                    files = training_files(
                        to=to,
                        model=load_model(model),
                        plan=plan,
                        gpus_per_node=8,
                        domain=72 if load else 8,
                        workload=replace(TrainingWorkload(seq=4096, global_batch=64), **load),
                    )
                except InputError as error:
                    files = {"refused": str(error)}
                lines = [line for _, content in sorted(files.items()) for line in content.splitlines()]
                changed = " ".join(
                    f"{key}={getattr(value, 'name', value)}" for key, value in {**change, **load}.items()
                )
                text += f"## {to} {model} {changed}: {' '.join(sorted(files))}\n"
                text += "".join(f"{line[:2000]}\n" for line in lines if line not in seen)
                seen.update(lines)
    return text


CHARTED = (
    "fit llama-3.1-70b --gpu h200-sxm:8 --isl 4096 --osl 1024 --concurrency 64",
    "fit deepseek-v3 --gpu h200-sxm:8 --isl 4096 --osl 1024 --concurrency 8",
    "fit llama-3.1-8b --gpu h100-sxm:8 --train 8192 --global-batch 64 --zero 3",
    "plan llama-3.1-8b --gpu h100-sxm:8 --train 4096 --global-batch 64",
    "plan llama-3.1-8b --gpu h100-sxm:4 --serve 2000/300 --tpot 20",
    "plan llama-3.1-8b --gpu h100-sxm:8 --serve 2000/300 --pools disaggregated",
    "compare llama-3.1-8b --gpu h100-sxm --gpu l40s --gpu t4 --serve 1000/300 --concurrency 8",
)
DOCUMENTS = (
    *CHARTED,
    "fit qwen3-30b-a3b --gpu h200-sxm:2 --engine sglang --isl 2000 --osl 200 --concurrency 32",
    "fit gemma-3-12b --gpu h100-sxm --engine tensorrt-llm --isl 1000 --osl 100 --rate 2",
    "fit llama-3.1-8b --gpu rtx-4090 --engine llama.cpp --precision Q4_K_M --isl 500 --osl 100 --concurrency 1",
    "fit qwen3-32b --gpu rtx-4090 --engine llama.cpp --precision Q8_0 --context 8192 --isl 500 --osl 100",
    "fit llama-3.1-8b --gpu a100-sxm4-80gb --engine transformers --isl 500 --osl 100 --concurrency 1",
    "fit llama-3.1-70b --gpu h100-sxm:4 --draft eagle3:3:0.7 --isl 4096 --osl 1024 --concurrency 8 --prefix-hit 0.5",
    "fit deepseek-r1 --gpu h200-sxm:16 --tp 1 --dp 16 --ep --isl 4096 --osl 1024 --concurrency 512",
    "fit llama-3.1-8b --gpu h100-sxm:8 --prefill 2xTP2 --decode 2xTP2 --isl 4096 --osl 1024 --concurrency 64",
    "fit llama-3.1-70b --gpu h100-sxm:8 --replicas 2 --tp 4 --isl 4096 --osl 1024 --rate 1",
    "fit gpt-oss-120b --gpu mi300x:2 --isl 1000 --osl 100 --concurrency 300",
    "fit qwen3-next-80b-a3b --gpu b200-sxm-180gb:2 --isl 30000 --osl 100 --concurrency 4",
    "fit llama-3.1-70b --gpu rtx-4090:2 --isl 100 --osl 100 --concurrency 4",
    "fit llama-3.1-405b --gpu h100-sxm:64 --train 8192 --global-batch 512 --tp 8 --pp 8 --vpp 2",
    "fit llama-2-7b --gpu rtx-4090 --train 2048 --global-batch 1 --method qlora",
    "models deepseek-v3",
    "models gemma-3-27b",
    "models nemotron-h-56b",
    "models llama-4-scout",
    "hardware h100-sxm",
    "hardware m3-ultra",
    "formats nvfp4",
    "formats q4_k",
    "precision recipe llama-3.1-8b --gpu b200-sxm-180gb:8 --zero 3",
    "precision plan qwen3-32b --gpu rtx-4090 --context 8192",
    "upgrade --from 0.8.5 --to 0.33 --gpu h200-sxm:8 -- vllm serve Qwen/Qwen3-32B --max-num-seqs 64",
    "kernels deepseek-v3 --gpu h200-sxm:8 --tp 8 --batch 32 --cached 4096",
)


def chart(words: str) -> str:
    """The specification that ``--chart`` draws."""
    drawn: list[Any] = []
    with (
        patch("trilemma.report.charts.write_chart", lambda spec, _: drawn.append(spec)),
        redirect_stdout(StringIO()),
        redirect_stderr(StringIO()),
    ):
        main(shlex.split(f"{words} --chart chart.html"))
    return "\n".join(map(plain_json, drawn))


def document(words: str) -> str:
    """The document that ``--json`` prints."""
    printed = StringIO()
    head, sign, tail = words.partition(" -- ")
    with redirect_stdout(printed), redirect_stderr(StringIO()):
        main(shlex.split(f"{head} --json{sign}{tail}"))
    try:
        return plain_json(json.loads(printed.getvalue()))
    except ValueError:
        return printed.getvalue()


def plain_json(value: Any) -> str:
    """JSON of numbers of six digits, an entry of a list a line."""
    return json.dumps(_rounded(value), ensure_ascii=False).replace("}, {", "},\n{").replace('}, "', '},\n"')


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        # Digests, seconds of a search and folders of models differ between two runs.
        unsteady = [
            "made_by",
            *(["seconds"] if "searched" in value else []),
            *(["source"] if "family" in value else []),
        ]
        return {name: _rounded(one) for name, one in value.items() if name not in unsteady}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


#: Name → what it writes down.
WRITTEN: dict[str, Callable[[], str]] = {
    "deployments": deployments,
    "trainings": trainings,
    **{f"chart {words}": lambda words=words: chart(words) for words in CHARTED},  # type: ignore[misc]
    **{f"document {words}": lambda words=words: document(words) for words in DOCUMENTS},  # type: ignore[misc]
}
