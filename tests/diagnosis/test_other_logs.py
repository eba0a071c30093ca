"""Logs in the ways other projects print them: what is a step and what is not, what a program ended on, what went on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trilemma.ask.diagnosed import Diagnosed, diagnose
from trilemma.diagnosis.reading import read_bytes


def told(*lines: str) -> dict[str, object]:
    return dict(read_bytes("file", "\n".join(lines).encode()).facts)


def judged(tmp_path: Path, *lines: str) -> Diagnosed:
    path = tmp_path / "a.log"
    path.write_text("\n".join(lines) + "\n")
    return diagnose(path)


#: Project, two lines as its loop prints them, facts.
LOOPS = [
    ("nanoGPT train.py", ["iter 100: loss 3.2441, time 245.72ms, mfu 35.21%", "iter 110: loss 3.2000, time 245.72ms, mfu 35.21%"],
     {"last_loss": 3.2, "median_step_ms": 245.72, "median_mfu_percent": 35.21}),
    ("modded-nanogpt", ["step:1528/1530 train_loss:3.4051 train_time:264282ms step_avg:174.10ms",
                        "step:1530/1530 train_loss:3.2366 train_time:264638ms step_avg:174.10ms"],
     {"last_loss": 3.2366, "median_step_ms": 178.0}),
    ("llm.c train_gpt2.cu", ["step  100/19560 | loss 5.010000 (+0.10z)| norm 1.2000 (+0.00z)| lr 6.00e-04 | 1200.50 ms | "
                             "45.0% bf16 MFU | 436000 tok/s"] * 2,
     {"last_loss": 5.01, "median_step_ms": 1200.5, "median_mfu_percent": 45.0, "median_tokens_per_s": 436000.0}),
    ("litgpt finetune", ["Epoch 1 | iter 3 step 1 | loss train: 1.978, val: n/a | iter time: 300.10 ms (step)"] * 2,
     {"last_loss": 1.978, "median_step_ms": 300.1}),
    ("nanotron", ["[INFO|DP=0]: iteration: 5 / 15 | consumed_tokens: 1.31M | elapsed_time_per_iteration_ms: 200 | "
                  "tokens_per_sec: 1.2M | lm_loss: 10.5 | lr: 0.0003"] * 2,
     {"last_loss": 10.5, "median_step_ms": 200.0}),
    ("MaxText", ["completed step: 10, seconds: 3.200, TFLOP/s/device: 190.123, Tokens/s/device: 1234.1, total_weights: 65536, "
                 "loss: 10.100"] * 2,
     {"last_loss": 10.1, "median_step_ms": 3200.0, "median_tflops_per_gpu": 190.123, "median_tokens_per_s_per_gpu": 1234.1}),
    ("torchtune", ["Step 12 | loss:1.512 lr:2e-05 tokens_per_second_per_gpu:812.4 peak_memory_active:20.1"] * 2,
     {"last_loss": 1.512, "median_tokens_per_s_per_gpu": 812.4}),
]  # fmt: skip


@pytest.mark.parametrize(("project", "lines", "facts"), LOOPS, ids=[one[0] for one in LOOPS])
def test_loops_of_other_projects(project: str, lines: list[str], facts: dict[str, float]) -> None:
    found = told(*lines)
    assert {name: found.get(name) for name in facts} == pytest.approx(facts), project


def test_bars_that_are_no_steps_are_none() -> None:
    """vLLM and SGLang show progress of loading and capturing in the same bars as trainers show steps."""
    bars = (
        "(EngineCore pid=30070) Loading safetensors checkpoint shards:  53% Completed | 8/15 [01:11<00:35,  5.06s/it]",
        "Capturing batches (bs=1 avail_mem=11.78 GB):  45%|####      | 23/51 [00:03<00:04,  6.50it/s]",
        "(Worker_TP0 pid=1) [Aiter Triton] Pre-compiling fp8 BMM kernel:  62%|######2   | 632/1024 [00:03<00:02, 180.0it/s]",
        "Processed prompts:  10%|#         | 1/10 [00:02<00:20,  2.26s/it]",
    )
    assert "median_step_ms" not in told(*bars)
    for line in ("  1%|          | 5/500 [00:10<16:30,  2.00s/it]", "[rank0]: Epoch 1:  10%|#  | 10/100 [00:20<03:00, 2.00s/it]",
                 "1|200|Loss: 0.84:  10%|#         | 200/1617 [06:40<47:14,  2.00s/it]"):  # fmt: skip
        assert told(line, line)["median_step_ms"] == 2000.0, line


def test_options_that_are_called_preemption_are_no_preemptions(tmp_path: Path) -> None:
    start = "INFO 05-12 02:45:15 [api_server.py:1044] args: Namespace(subparser='serve', preemption_mode=None)"
    version = "INFO 05-12 02:45:15 [api_server.py:1043] vLLM API server version 0.8.4"
    assert judged(tmp_path, version, start).healthy
    retracted = "KV cache pool is full. Retract requests. #retracted_reqs: 7, #new_token_ratio: 0.41 -> 0.79"
    loaded = "[2025-04-29 10:00:00 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=124.0 GB, mem usage=15.01 GB."
    found = judged(tmp_path, loaded, f"[2025-04-29 10:10:00 TP0] {retracted}")
    assert [(one.id, one.observed) for one in found.findings] == [("serving.preemptions", "7")]


def test_overflows_while_the_loss_scale_settles_are_no_fault(tmp_path: Path) -> None:
    """DeepSpeed begins at 2**32 and halves; BigScience's GPT-2 logs overflow twice at 256 and are well."""
    steps = [f" iteration {at} | elapsed time per iteration (ms): 900.0 | lm loss: 7.6" for at in range(1, 20)]
    skipped = "[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {0}, reducing to {1}"
    found = judged(tmp_path, *(skipped.format(2**at, 2 ** (at - 1)) for at in range(32, 16, -1)), *steps)
    assert found.healthy
    assert found.files[0].facts["overflows_while_the_scale_settled"] == 16
    again = judged(tmp_path, *steps, *(skipped.format(256, 128) for _ in range(6)))
    assert [one.id for one in again.findings] == ["numerics.overflow"]


def test_sacct_with_any_delimiter_and_order() -> None:
    """sacct --parsable2, and with a delimiter of two characters; a comment that breaks a line is left out."""
    for between in ("|", "|#", ";"):
        rows = (("Account", "ExitCode", "JobID", "JobName", "State"), ("x", "0:0", "12.0", "step", "COMPLETED"),
                ("x", "0:125", "12", "job", "OUT_OF_MEMORY"), ("rest of a comment",))  # fmt: skip
        found = read_bytes("file", "\n".join(between.join(row) for row in rows).encode())
        assert found.kind == "slurm-accounting", between
        assert found.facts["jobs_by_state"] == {"OUT_OF_MEMORY": 1}
        assert found.facts["steps"] == 1


def test_a_wide_query_of_nvidia_smi() -> None:
    """Every field that the tool has makes a head of 9,000 characters, capitals in some names."""
    names = ["timestamp", "driver_version", "vgpu_driver_capability.heterogenous_multivGPU", "name", "memory.total [MiB]",
             *(f"clocks.field_{at} [MHz]" for at in range(400))]  # fmt: skip
    row = ["2026/07/14 08:12:38.696", "590.48.01", "[N/A]", "NVIDIA H100 80GB HBM3", "81559 MiB", *["[N/A]"] * 400]
    found = read_bytes("file", f"{', '.join(names)}\n{', '.join(row)}\n".encode())
    assert (found.kind, found.facts["gpus"], found.facts["memory_total_mib"]) == ("nvidia-smi-csv", 1, [81559.0])
    empty = read_bytes("file", b"timestamp, gpu_name, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n")
    assert (empty.kind, empty.facts["gpus"]) == ("nvidia-smi-csv", 0)


TRACE = ("(EngineCore_DP0 pid=7) ERROR 07-31 16:03:52 [core.py:1231] Traceback (most recent call last):",
         '(EngineCore_DP0 pid=7) ERROR 07-31 16:03:52 [core.py:1231]   File "a.py", line 3, in load',
         "(EngineCore_DP0 pid=7) ERROR 07-31 16:03:52 [core.py:1231]     raise RuntimeError(",
         "(EngineCore_DP0 pid=7) ERROR 07-31 16:03:52 [core.py:1231] RuntimeError: Triton Error [CUDA]: device kernel image is "
         "invalid")  # fmt: skip
AFTER = ("Traceback (most recent call last):", '  File "b.py", line 9, in main',
         "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")  # fmt: skip


def test_what_a_program_ended_on(tmp_path: Path) -> None:
    """The error that was first, not what waited for it; what it means stands in a table with its source."""
    found = judged(tmp_path, *TRACE, *AFTER)
    (root,) = found.findings
    assert (root.id, root.role, root.confidence) == ("program.error", "root", "established")
    assert "the binary holds no code for this card's architecture" in root.claim
    assert root.evidence[0].line == 4
    assert found.exit_code == 1
    rank = "[rank3]: ValueError: optimizer got an empty parameter list"
    (one,) = judged(tmp_path, "[rank3]: Traceback (most recent call last):", rank).findings
    assert (one.observed, one.confidence) == ("ValueError", "supported")
    (native,) = judged(tmp_path, " ROCm error: unspecified launch failure").findings
    assert "a kernel failed on the card" in native.claim
    (killed,) = judged(tmp_path, "  traceback : Signal 9 (SIGKILL) received by PID 4242").findings
    assert "host's memory was full" in killed.claim


def test_an_error_that_was_survived_is_told_as_context(tmp_path: Path) -> None:
    found = judged(
        tmp_path, *TRACE, "INFO: Engine 000: Avg generation throughput: 90.1 tokens/s, Running: 4 reqs, Waiting: 0 reqs"
    )
    assert found.healthy
    assert [one.id for one in found.findings] == ["program.error"]
    assert judged(tmp_path, "ValueError: a word in a text", "see the RuntimeError: of yesterday").findings == ()


def test_an_error_that_another_finding_tells_is_not_told_twice(tmp_path: Path) -> None:
    out = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.77 GiB of "
           "which 12.00 MiB is free.")  # fmt: skip
    found = judged(tmp_path, "Traceback (most recent call last):", '  File "a.py", line 3', out)
    assert "program.error" not in {one.id for one in found.findings}
    assert "memory.out-of-memory" in {one.id for one in found.findings}


def test_a_word_before_a_colon_is_no_kernel_log() -> None:
    assert read_bytes("file", b"compiling fp8 BMM kernel: 10%\ncompiling fp8 BMM kernel: 20%\n").kind == "text"
    assert read_bytes("file", b"Aug 30 11:11:22 node7 kernel: usb 1-2: new device\n").kind == "kernel-log"


def dmon(rows: list[tuple[int, ...]]) -> list[str]:
    head = "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk"
    return [head, *(f"    {gpu}    120     40      -    {busy}     20      0      0   1593   1410"
                    for row in rows for gpu, busy in enumerate(row))]  # fmt: skip


def test_utilisation_that_swings(tmp_path: Path) -> None:
    """Eight seconds of work, four of waiting, over and over; a GPU that works, or waits once at the end, has no saw-tooth."""
    swings = [(98, 97) if at % 12 < 8 else (0, 3) for at in range(60)]
    found = judged(tmp_path, *dmon(swings))
    assert [one.id for one in found.findings] == ["speed.saw-tooth"]
    assert found.findings[0].observed == "waiting 33%"
    assert judged(tmp_path, *dmon([(98, 97)] * 60)).healthy
    assert judged(tmp_path, *dmon([(98, 97)] * 40 + [(0, 0)] * 20)).healthy


def test_states_that_gpud_serves(tmp_path: Path) -> None:
    """leptonai/gpud api/v1/types.go, ComponentHealthStates: component, states of health with reason and repairs."""
    states = [
        {"component": "cpu", "states": [{"time": "2025-07-01T00:00:00Z", "health": "Healthy", "reason": "ok"}]},
        {"component": "accelerator-nvidia-error-xid", "states": [{
            "health": "Unhealthy", "reason": "XID 79 detected on GPU 0000:9b:00",
            "suggested_actions": {"repair_actions": ["REBOOT_SYSTEM"]}}]},
        {"component": "accelerator-nvidia-infiniband", "states": [{"health": "Degraded", "reason": "7 of 8 ports"}]},
    ]  # fmt: skip
    path = tmp_path / "states.json"
    path.write_text(json.dumps(states))
    found = diagnose(path)
    assert found.files[0].kind == "gpud-states"
    assert found.files[0].facts["states_by_health"] == {"Healthy": 1, "Unhealthy": 1, "Degraded": 1}
    assert [(one.id, one.severity, one.fix) for one in found.findings] == [
        ("machine.accelerator-nvidia-error-xid", "error", "reboot the node"),
        ("machine.accelerator-nvidia-infiniband", "warning", None),
    ]
    path.write_text(json.dumps(states[:1]))
    assert diagnose(path).healthy
    path.write_text(json.dumps([{"component": "a", "states": 7}, {"component": 3}, 5]))
    assert diagnose(path).files[0].kind == "json"
