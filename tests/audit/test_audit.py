"""``trilemma audit``: the checklist over three plans, verdicts made by hand; exit codes; what is stated and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trilemma as tl
from asking import document
from trilemma.auditing.saving import saving_of
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.report.schemas import schema_of

_MODEL = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096"
    " --micro-batch-size 1 --tokenizer-type GPT2BPETokenizer --vocab-size 50257 --bf16 --save x"
)
WELL = (
    f"torchrun --nproc_per_node 8 pretrain_gpt.py {_MODEL} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    " --global-batch-size 128 --async-save --save-interval 500"
)
ILL = (
    f"torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py {_MODEL} --tensor-model-parallel-size 16"
    " --pipeline-model-parallel-size 4 --global-batch-size 8 --save-interval 500 --fp8-format hybrid"
    " --transformer-impl transformer_engine"
)
SERVING = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 4096"

_NAMES = {
    "links": "links complete", "collectives": "collectives reach 80 % of the fabric",
    "tensor": "tensor parallelism inside the fast domain", "bubble": "pipeline bubble below 10 %",
    "loader": "loader at three times the consumption", "precision": "low precision gated by convergence",
    "saving": "checkpoints asynchronous, at a sensible interval", "throttling": "no throttling",
    "speed": "measured speed as expected",
}  # fmt: skip


def topology(way: str) -> str:
    head = "        " + "    ".join(f"GPU{n}" for n in range(8)) + "    CPU Affinity    NUMA Affinity\n"
    rows = (f"GPU{n}    {'    '.join('X' if m == n else way for m in range(8))}    0-47    0\n" for n in range(8))
    return head + "".join(rows)


def nccl_tests(busbw: float) -> str:
    """All-reduce over eight H100 of one host, as nccl-tests prints it."""
    ranks = "".join(
        f"#  Rank  {n} Group  0 Pid   10{n} on      node0 device  {n} [0x0{n}] NVIDIA H100 80GB HBM3\n"
        for n in range(8)
    )
    head = (
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n#\n"
        f"# Using devices\n{ranks}#\n"
        "#                                                              out-of-place                       in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    )
    rows = "".join(
        f"{size:>12} {size // 4:>12} float sum -1 {size / busbw / 1e3 * 1.75:>8.1f} {busbw / 1.75:>7.2f} {busbw:>7.2f} 0"
        f" {size / busbw / 1e3 * 1.75:>8.1f} {busbw / 1.75:>7.2f} {busbw:>7.2f} 0\n"
        for size in (1 << 28, 1 << 30, 1 << 33)
    )
    return f"{head}{rows}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {busbw}\n"


def smi(*, throttled: bool, busy: int = 98) -> str:
    gpus = "".join(
        f'<gpu id="00000000:0{n}:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>'
        f"<fb_memory_usage><total>81559 MiB</total></fb_memory_usage><utilization><gpu_util>{busy} %</gpu_util></utilization>"
        f"<clocks_event_reasons><clocks_event_reason_hw_thermal_slowdown>{'Active' if throttled and n == 3 else 'Not Active'}"
        "</clocks_event_reason_hw_thermal_slowdown></clocks_event_reasons><temperature><gpu_temp>71 C</gpu_temp></temperature>"
        "</gpu>"
        for n in range(8)
    )
    return f'<?xml version="1.0" ?><nvidia_smi_log><driver_version>550.54</driver_version>{gpus}</nvidia_smi_log>\n'


@pytest.fixture
def records(tmp_path: Path) -> Any:
    def write(**texts: str) -> list[Path]:
        paths = []
        for name, text in texts.items():
            path = tmp_path / name
            path.write_text(text)
            paths.append(path)
        return paths

    return write


def states(found: Any) -> dict[str, str]:
    short = {name: key for key, name in _NAMES.items()}
    return {short[item.item]: item.state for item in found.items}


def test_a_saved_plan_beside_what_was_measured(
    records: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document of `fit --json` gives what the answer itself gives; its files are judged beside it."""
    answer = tl.fit("qwen3-8b", "h100-sxm:8", train=4096, global_batch=128)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(answer.to_dict()))
    files = records(topo=topology("NV18"), nccl=nccl_tests(470), smi=smi(throttled=True))
    found = tl.audit([plan, *files], loader=1000, tokens_per_s=80_000)
    beside = tl.audit(files, answer=answer, loader=1000, tokens_per_s=80_000)
    assert states(found) == states(beside)
    assert states(found)["links"] == "pass"
    assert states(found)["throttling"] == "fail"
    assert main(["audit", str(plan), *map(str, files)]) == 1
    serving = tmp_path / "serving.json"
    serving.write_text(json.dumps(tl.fit("qwen3-8b", "h100-sxm").to_dict()))
    assert states(tl.audit(serving))["tensor"] == "pass"
    with pytest.raises(InputError, match="two plans"):
        tl.audit([plan, serving])
    pasted = tmp_path / "pasted.json"
    pasted.write_text(json.dumps(tl.check(WELL, gpu="h100-sxm:8").to_dict()))
    with pytest.raises(InputError, match="which a command described"):
        tl.audit(pasted)
    capsys.readouterr()


@pytest.mark.parametrize("change", [
    {"inputs": 7}, {"inputs": {}}, {"inputs": {"model": {"name": "qwen3-8b"}, "cluster": {"accelerator": {"id": 3}, "gpus": 1}}},
    {"inputs": {"model": {"name": "qwen3-8b"}, "cluster": {"accelerator": {"id": "h100-sxm"}, "gpus": True}}},
    {"inputs": {"model": {"name": "qwen3-8b"}, "cluster": {"accelerator": {"id": "h100-sxm"}, "gpus": 1}, "plan": []}},
    {"schema": "trilemma/other@1"},
])  # fmt: skip
def test_saved_plans_that_are_none_are_refused_in_a_line(change: dict[str, Any], tmp_path: Path) -> None:
    document = tl.fit("qwen3-8b", "h100-sxm").to_dict() | change
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as refused:
        tl.audit(path)
    assert "\n" not in str(refused.value)


def test_a_plan_that_is_well_in_everything(records: Any) -> None:
    """By hand: NVLink between all, 470 of 450 GB/s x 0.82 – 1.07, TP 2 of a domain of 8, (2-1)/(32+1) = 3 % and less of bubble,
    100 of 18.6 samples a second, BF16, asynchronous saving, no reason to slow down, 76,000 tokens/s where 75,800 are expected."""
    files = records(topo=topology("NV18"), nccl=nccl_tests(470), smi=smi(throttled=False))
    found = tl.audit(files, WELL, "h100-sxm:8", tokens_per_s=76_000, loader=100)
    assert states(found) == dict.fromkeys(_NAMES, "pass")
    assert found.fits
    told = {item.item: item.evidence for item in found.items}
    assert "MFU 41" in told[_NAMES["speed"]]
    assert "5.4 times" in told[_NAMES["loader"]]


def test_a_plan_that_is_ill_in_everything(records: Any) -> None:
    """By hand: PCIe between H100, 120 GB/s of at least 0.8 x 0.82 x 450, TP 16 over nodes of 8, a bubble of about
    3/(8+3) = 27 %, a loader of twice the consumption, a gate that failed, synchronous saving every 2.4 minutes, thermal slowdown,
    a tenth of the expected speed."""
    gate = json.dumps(
        {"schema": "trilemma/gate@1", "outcome": "fail", "reason": "the loss is 3 % above the reference's"}
    )
    files = records(topo=topology("PIX"), nccl=nccl_tests(120), smi=smi(throttled=True), gate=gate)
    rate = tl.check(ILL, "h100-sxm:64").speed
    assert rate is not None
    assert rate.tokens_per_s_per_gpu is not None
    tokens = rate.tokens_per_s_per_gpu.value * 64 / 10
    found = tl.audit(files, ILL, "h100-sxm:64", tokens_per_s=tokens, loader=2 * tokens / 4096)
    assert states(found) == dict.fromkeys(_NAMES, "fail")
    assert not found.fits
    assert all(item.remedy for item in found.items)


def test_a_plan_of_which_little_is_known() -> None:
    """By hand: serving over PCIe has its tensor parallelism outside of any fast domain; of the rest nothing was given."""
    found = tl.audit((), SERVING, "rtx-4090:4")
    assert states(found) == {"links": "unknown", "collectives": "unknown", "tensor": "fail", "throttling": "unknown"}
    one = tl.audit((), SERVING.replace(" 4 ", " 1 "), "h100-sxm:1")
    assert states(one)["tensor"] == "pass"
    assert one.fits  # what is not known is no fail


@pytest.mark.parametrize(("minutes", "asynchronous", "state"), [
    (60, True, "pass"), (60, False, "fail"), (0.05, True, "fail"), (None, True, "unknown"), (60, None, "unknown"),
])  # fmt: skip
def test_how_a_run_saves(minutes: float | None, asynchronous: bool | None, state: str) -> None:
    command = WELL.replace("--async-save --save-interval 500", "")
    found = tl.audit((), command, "h100-sxm:8", checkpoint_minutes=minutes, checkpoint_async=asynchronous)
    assert states(found)["saving"] == state


def test_flags_of_saving_are_read() -> None:
    assert saving_of(WELL.split()).interval_steps == 500
    assert saving_of(WELL.split()).asynchronous is True
    assert saving_of(ILL.split()).asynchronous is False
    assert saving_of(["--checkpoint.interval=50", "--checkpoint.async_mode", "async"]).asynchronous is True
    assert saving_of([]).asynchronous is None


def test_low_precision_without_a_gate_is_not_known(records: Any) -> None:
    assert states(tl.audit((), ILL, "h100-sxm:64"))["precision"] == "unknown"
    gate = records(gate=json.dumps({"schema": "trilemma/gate@1", "outcome": "pass", "reason": "within 0.5 %"}))
    assert states(tl.audit(gate, ILL, "h100-sxm:64"))["precision"] == "pass"


def test_idle_records_say_nothing_of_throttling(records: Any) -> None:
    assert states(tl.audit(records(smi=smi(throttled=False, busy=0)), WELL, "h100-sxm:8"))["throttling"] == "unknown"


def test_exit_codes_and_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--gpu", "h100-sxm:8", "--", *WELL.split()]) == 0
    assert main(["audit", "--gpu", "h100-sxm:64", "--", *ILL.split()]) == 1
    assert "FAIL  tensor parallelism inside the fast domain: TP 16 crosses network" in capsys.readouterr().out
    assert main(["audit"]) == 2
    assert "nothing to audit" in capsys.readouterr().err
    assert main(["audit", str(tmp_path / "none")]) == 2
    assert main(["audit", "--tokens-per-s", "5", str(Path(__file__))]) == 2
    assert "measured against a plan" in capsys.readouterr().err.splitlines()[-1]
    (tmp_path / "topo").write_text(topology("NV18"))
    jsonschema.validate(document(f"audit {tmp_path / 'topo'}"), schema_of("audit"))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([topology("NV18"), nccl_tests(300), smi(throttled=True), '{"schema": "trilemma/gate@1"}'])
                | st.text(max_size=60), max_size=4), st.binary(max_size=60), st.integers(0, 900))  # fmt: skip
def test_any_records_are_audited(tmp_path: Path, texts: list[str], noise: bytes, at: int) -> None:
    path = tmp_path / "record"
    whole = "\n".join(texts).encode("utf-8", errors="replace")
    path.write_bytes(whole[:at] + noise + whole[at:])
    try:
        found = tl.audit([path])
    except InputError as error:
        assert str(error).count("\n") == 0  # noqa: PT017 - a refusal is one of the two right ends
        return
    assert len(found.items) == len(_NAMES)


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 8, b'{"schema": "trilemma/recommendation@1"}'])
def test_files_that_say_nothing_are_no_checklist(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.bin"
    file.write_bytes(content)
    assert main(["audit", str(file)]) == 2
    told = capsys.readouterr().err
    assert "nothing to audit in" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("option", ["--loader", "--checkpoint-minutes", "--storage"])
def test_rates_that_cannot_be_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("0", "-1"):
        words = ["audit", option, value, "--gpu", "h100-sxm", "--", "vllm", "serve", "Qwen/Qwen3-8B"]
        assert main(words) == 2
        assert capsys.readouterr().err == f"trilemma: {option} {value} is out of range; give a number above 0\n"


def test_more_than_the_peak_is_no_pass() -> None:
    """The plan is to use 40 to 60 % of the peak: ten times its rate is none of this run's."""
    answer = tl.fit("llama-3.1-8b", "h100-sxm:8", seq=4096, global_batch=128)
    assert answer.speed is not None
    assert answer.speed.tokens_per_s_per_gpu is not None
    expected = answer.speed.tokens_per_s_per_gpu.value * 8
    for rate, state in ((expected, "pass"), (10 * expected, "unknown")):
        items = {one.item: one for one in tl.audit((), answer=answer, tokens_per_s=rate).items}
        assert items["measured speed as expected"].state == state
    assert "no card exceeds its peak" in items["measured speed as expected"].evidence
