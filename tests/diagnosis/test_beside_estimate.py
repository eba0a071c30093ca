"""A run beside the estimator: what it should reach, what it reached, the gap by cause, and changes that fit when fed back."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import trilemma as tl
from trilemma.ask.diagnosed import Diagnosed, diagnose
from trilemma.cli.main import main
from trilemma.diagnosis.findings import Finding
from trilemma.quantities import GIB

# Shapes of vLLM 0.11: api_server.py, gpu_model_runner.py, gpu_worker.py, loggers.py.
START = """\
INFO 04-22 10:00:00 [api_server.py:1] vLLM API server version 0.11.0
INFO 04-22 10:00:00 [utils.py:1] non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct', 'max_model_len': 16384}
INFO 04-22 10:00:10 [gpu_model_runner.py:1] Model loading took 14.99 GiB memory and 5.0 seconds
INFO 04-22 10:00:20 [gpu_worker.py:1] Available KV cache memory: %(pool)s GiB
INFO 04-22 10:00:20 [kv_cache_utils.py:1] GPU KV cache size: 435,056 tokens
INFO: Application startup complete.
"""
LOAD = (
    "INFO 04-22 10:01:30 [loggers.py:1] Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: "
    "{generated} tokens/s, Running: 64 reqs, Waiting: {waiting} reqs, GPU KV cache usage: 36.0%, Prefix cache hit rate: 0.0%\n"
)
MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 "
    "--max-position-embeddings 8192 --micro-batch-size {micro} --global-batch-size 128 --bf16 --swiglu --group-query-attention "
    "--num-query-groups 8 --ffn-hidden-size 14336 --use-distributed-optimizer --untie-embeddings-and-output-weights "
    "--vocab-size 128256"
)
OUT = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked} GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 4.13 GiB is free. Including non-PyTorch memory, this process has 74.90 GiB memory in use. Of the allocated memory "
    "72.80 GiB is allocated by PyTorch, and 0.60 GiB is reserved by PyTorch but unallocated.\n"
)


def judged(tmp_path: Path, text: str, command: str = "", gpu: str | None = "h100-sxm", **options: Any) -> Diagnosed:
    path = tmp_path / "run.log"
    path.write_text(text)
    return diagnose(path, command, gpu, **options)


def one(found: Diagnosed, name: str) -> Finding:
    return next(finding for finding in found.findings if finding.id == name)


def numbers(text: str) -> tuple[float, float, float]:
    found = re.match(r"([\d,.e+]+) \(([\d,.e+]+) – ([\d,.e+]+)\)", text)
    assert found is not None
    value, low, high = (float(part.replace(",", "")) for part in found.groups())
    return value, low, high


def test_a_serving_log_ends_in_expected_observed_and_the_gap(tmp_path: Path) -> None:
    """The load is read off the log: 36 % of 435,056 tokens in 64 requests, four prompt tokens to each that is generated."""
    text = START % {"pool": "53.11"} + LOAD.format(prompt=2000.0, generated=500.0, waiting=3)
    found = judged(tmp_path, text)
    slow = one(found, "serving.throughput")
    held = 0.36 * 435_056 / 64
    osl = round(held / 4.5)
    assert f"64 requests of {round(held - osl / 2)} + {osl} tokens" in slow.claim
    value, low, high = numbers(slow.expected or "")
    assert 500 < low < value < high
    assert slow.observed == "500 tokens/s"
    assert f"the gap is {1 - 500 / value:.0%}" in slow.claim
    assert "3 requests wait" in slow.claim
    assert (slow.severity, slow.role) == ("warning", "symptom")
    answer = tl.fit("llama-3.1-8b", "h100-sxm", engine="vllm@0.11.0", isl=round(held - osl / 2), osl=osl, concurrency=64,
                    context=16384)  # fmt: skip
    assert answer.speed is not None
    assert answer.speed.output_tokens_per_s is not None
    assert value == pytest.approx(answer.speed.output_tokens_per_s.value, rel=0.01)


def test_a_run_that_reaches_what_is_expected_is_context(tmp_path: Path) -> None:
    found = judged(tmp_path, START % {"pool": "51.20"} + LOAD.format(prompt=9000.0, generated=2250.0, waiting=0))
    assert found.healthy
    assert "as expected" in one(found, "serving.throughput").claim
    cache = one(found, "memory.cache-beside-estimate")
    assert cache.severity == "context"
    assert "the gap is" in cache.claim


def test_a_cache_that_lacks_memory_is_told_by_line(tmp_path: Path) -> None:
    text = START.replace("14.99", "19.99") % {"pool": "44.00"}
    cache = one(judged(tmp_path, text), "memory.cache-beside-estimate")
    assert (cache.severity, cache.evidence[0].line) == ("warning", 4)
    assert "weights +5.00 GiB" in cache.claim
    value, low, _ = (float(part) for part in re.findall(r"[\d.]+", cache.expected or ""))
    assert 44.0 < low < value


def test_a_training_log_ends_in_expected_observed_and_the_gap(tmp_path: Path) -> None:
    """Line shapes of Megatron-LM's training.py; a third of the step waits for data."""
    step = (
        " [2026-01-01 00:00:00] iteration {at:8d}/ 500 | consumed samples: 1 | elapsed time per iteration (ms): 40000.0 | "
        "data_time: 13.0 | lm loss: 7.652340E+00 | grad norm: 1.2 |\n"
    )
    text = "".join(step.format(at=at) for at in range(1, 12))
    found = judged(tmp_path, text, MEGATRON.format(micro=1), "h100-sxm:8")
    slow = one(found, "training.throughput")
    value, low, _ = numbers(slow.expected or "")
    observed = 128 * 8192 / 8 / 40
    assert slow.observed == f"{observed:,.0f} tokens/s a GPU"
    assert observed < low < value
    expected_s = 128 * 8192 / 8 / value
    assert f"the gap is {40 - expected_s:.3g} s a step" in slow.claim
    assert "13 s waiting for data (logged)" in slow.claim
    assert "that the log does not explain" in slow.claim
    assert slow.predicted_effect == f"a step of 27 s, {40 / 27:.2f} times as fast"
    assert one(found, "training.data-bound").role == "root"


def test_a_log_over_tcp_gets_the_cost_of_it_by_a_second_estimate(tmp_path: Path) -> None:
    network = "host-1:1:2 [0] NCCL INFO NET/Socket : Using [0]bond0:10.0.0.1<0>\n"
    steps = "".join(f" iteration {at} | elapsed time per iteration (ms): 7500.0 | lm loss: 7.6\n" for at in range(1, 4))
    command = MEGATRON.format(micro=1).replace("--nproc_per_node 8", "--nnodes 2 --nproc_per_node 8")
    found = judged(tmp_path, network + steps, command, "h100-sxm:16")
    slow = one(found, "training.throughput")
    assert re.search(r"[\d.]+ s over TCP in place of RDMA", slow.claim)


def test_a_failed_allocation_of_a_training_has_its_ledger_and_changes_that_fit(tmp_path: Path) -> None:
    found = judged(tmp_path, OUT.format(asked=15.66), MEGATRON.format(micro=4), "h100-sxm:8")
    root = found.findings[0]
    assert root.id == "memory.out-of-memory"
    assert "= 79.10 GiB" in root.claim
    assert "4 sequences of 8,192 tokens by 128,256 logits of 4 bytes" in root.claim
    assert (root.expected or "").startswith("by the ledger (the command given): weights ")
    flags = re.findall(r"\d\. [^:]+: (--[^;]+)", root.fix or "")
    assert len(flags) == 3
    base = "fit llama-3.1-8b --gpu h100-sxm:8 --train 8192 --global-batch 128 --engine megatron --zero 1"
    for one_change in flags:
        words = shlex.split(f"{base} {one_change}")
        assert main(words) == 0, one_change


def test_a_failed_allocation_of_a_server_has_changes_that_leave_room_for_it(tmp_path: Path) -> None:
    """The ledger says that it fits and the run says that it does not: what is unknown stays on the card."""
    found = judged(tmp_path, OUT.format(asked="6.00"), "vllm serve meta-llama/Llama-3.1-8B-Instruct", "h100-sxm:1")
    root = found.findings[0]
    commands = re.findall(r"\d\. [^:]+: (vllm serve [^;]+)", root.fix or "")
    assert len(commands) == 3
    before = tl.check("vllm serve meta-llama/Llama-3.1-8B-Instruct", "h100-sxm:1")
    unknown = 79.10 * GIB - 4.13 * GIB + 6 * GIB - before.memory.total.value
    for command in commands:
        again = tl.check(command.strip(), "h100-sxm:1")
        assert again.fits
        assert again.memory.total.value + unknown <= again.memory.capacity_bytes


def test_check_holds_a_training_log_against_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        " iteration 1 | elapsed time per iteration (ms): 30000.0 | lm loss: 7.6\n"
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 30000.0 | max allocated: 60000.0 | max reserved: 64000.0\n"
    )
    words = ["check", "--gpu", "h100-sxm:8", "--log", str(log), "--", *shlex.split(MEGATRON.format(micro=1))]
    assert main(words) in (0, 1)
    shown = capsys.readouterr().out
    assert "against the log" in shown
    assert "peak memory, GiB" in shown
    log.write_text(OUT.format(asked=15.66))
    answer = tl.check(MEGATRON.format(micro=4), "h100-sxm:8", log=str(log))
    assert answer.verdict.measured
    assert answer.verdict.stage == "oom_runtime"
    assert "72.80 GiB allocated by PyTorch + 0.60 GiB reserved" in answer.verdict.reason
    assert len(answer.remedies) == 3
    log.write_text("nothing of the kind\n")
    assert main(words) == 2
    assert "no step of a training" in capsys.readouterr().err


def test_check_tells_the_failed_sum_of_a_start(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text(START % {"pool": "53.11"} + OUT.format(asked="2.00"))
    answer = tl.check("vllm serve meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", log=str(log))
    (told,) = (warning.message for warning in answer.warnings if warning.code == "failed-sum")
    assert "2.00 GiB were asked for; 72.80 GiB allocated by PyTorch" in told
    assert f"{log}:7" in told


AWS = """\
+ TORCHRUN_ARGS=('--nproc_per_node=8' '--nnodes=4' '--rdzv_backend=c10d')
+ TRAIN_SCRIPT=../src/train.py
+ TRAINING_ARGS=('--max_context_width=8192' '--num_key_value_heads=8' '--intermediate_size=14336' '--hidden_width=4096' \
'--num_layers=32' '--num_heads=32' '--model_type=llama_v3' '--train_batch_size=1' \
'--sharding_strategy=full' '--offload_activations=1')
0: 2025-06-17 16:24:21 I [train.py:172] Created model with total parameters: 7392727040 (7.39 B)
0: 2025-06-17 16:24:52 I [train.py:103] Batch 0 Loss: 11.61653, Speed: 4.88 samples/sec, lr: 0.000100
0: 2025-06-17 16:24:55 I [train.py:103] Batch 1 Loss: 11.64398, Speed: 10.90 samples/sec, lr: 0.000100
0: 2025-06-17 16:24:58 I [train.py:103] Batch 2 Loss: 10.58705, Speed: 11.09 samples/sec, lr: 0.000100
"""


def test_a_log_that_holds_its_command_needs_no_other(tmp_path: Path) -> None:
    """aws-samples/awsome-distributed-training @7217859, 3.test_cases/pytorch/FSDP: figures of its README; the example's loader
    cuts sequences of 4,096 tokens whatever ``--max_context_width`` says (model_utils/train_utils.py)."""
    found = judged(tmp_path, AWS, gpu="h100-sxm")
    slow = one(found, "training.throughput")
    assert "run.log:1" in slow.claim
    assert slow.observed == f"{10.9 * 4096 / 32:,.0f} tokens/s a GPU"
    assert numbers(slow.expected or "")[1] > 2000
    without = judged(tmp_path, AWS, gpu=None)
    assert any("--gpu is missing" in text for text in without.missing)
    parameters = tl.check(found_command(found), "h100-sxm").inputs["model"]["parameters"]
    assert parameters == 7_392_727_040


def found_command(found: Diagnosed) -> str:
    return str(next(part for part in found.files[0].parts if part.kind == "launch-command").facts["command"])


def test_arguments_that_megatron_prints_are_a_command(tmp_path: Path) -> None:
    """Shape of print_args of megatron/training/arguments.py."""
    values = {
        "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 8192, "micro_batch_size": 1,
        "global_batch_size": 128, "bf16": True, "swiglu": True, "fp16": False, "ffn_hidden_size": 14336, "world_size": 8,
        "vocab_size": 128256, "max_position_embeddings": 8192, "use_distributed_optimizer": True, "add_bias_linear": False,
    }  # fmt: skip
    dump = "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in values.items())
    text = (
        f"------------------------ arguments ------------------------\n{dump}"
        "-------------------- end of arguments ---------------------\n"
        " iteration 1 | elapsed time per iteration (ms): 19000.0 | lm loss: 7.6\n"
    )
    found = judged(tmp_path, text, gpu="h100-sxm")
    words = found_command(found).split()
    assert words[:5] == ["torchrun", "--nnodes", "1", "--nproc_per_node", "8"]
    assert "--fp16" not in words
    assert {"--bf16", "--swiglu", "--disable-bias-linear"} <= set(words)
    assert one(found, "training.throughput").observed == f"{128 * 8192 / 8 / 19:,.0f} tokens/s a GPU"


def test_an_answer_can_stand_beside_a_log(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(
        "[titan] step: 10  loss:  8.1234  memory: 45.1GiB(57.0%)  tps: 7,120  tflops: 412.34  mfu: 41.69%\n"
    )
    answer = tl.fit("llama-3.1-8b", "h100-sxm:8", seq=8192, global_batch=128, engine="torchtitan", recompute="full")
    found = diagnose(path, beside=answer)
    assert "(the answer given" in one(found, "training.throughput").claim
    assert one(found, "training.memory-beside-estimate").observed == "45.10 GiB"


def test_words_behind_two_dashes_are_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    log.write_text(OUT.format(asked=15.66))
    assert (
        main(["diagnose", str(log), "--gpu", "h100-sxm:8", "--json", "--", *shlex.split(MEGATRON.format(micro=4))]) == 1
    )
    assert '"by the ledger (the command given)' in capsys.readouterr().out
    assert main(["diagnose", str(log), "--", "vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct"]) == 2
    assert "--gpu is missing" in capsys.readouterr().err
