"""Hostile files for every reader of ``trilemma diagnose``: whatever stands in one, the answer is a reading and findings.

``python scripts/fuzz_diagnosis.py 100000`` changes samples of every kind at random (``--seed``), ``--reader KIND`` only those of
one; ``--through doctor``, ``lint`` or ``audit`` gives the same to the other commands that read files; ``--atheris`` lets atheris
(Google's coverage-guided fuzzer, extra ``fuzz``) choose the bytes. Anything that is raised, and any input that takes longer than
two seconds, ends the run with the bytes that did it in ``fuzz-crash``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trilemma.diagnosis.findings import Case
from trilemma.diagnosis.readers import every_reader
from trilemma.diagnosis.reading import read_bytes
from trilemma.diagnosis.rules import rules
from trilemma.errors import InputError

_SLOW_S = 2.0
_WORDS = (b"nan", b"inf", b"-1", b"99999999999999999999", b"1e999", b"\0", b"\xff", b"\n", b" ", b"{", b"[", b"(", b"'",
          b"\x1b[31m",
          "ü".encode(), b"GiB", b"rank 7", b"0x", b"=", b": ", b", ")  # fmt: skip


def samples() -> dict[str, list[bytes]]:
    """Kind → files of it to begin with: every line of its marks with figures behind them, documents of the keys it knows."""
    found: dict[str, list[bytes]] = {}
    tails = (
        " 12.5 GiB",
        ": 3, pid=7, name=python, text",
        " 100 tokens/s, Running: 8 reqs",
        "=('--a=1' '--b')",
        " (7/16) [1.0, nan]",
    )
    for reader in every_reader():
        if reader.form == "lines":
            lines = [f"{mark}{tail}" for mark in (*reader.own, *reader.marks) for tail in tails]
            found[reader.kind] = ["\n".join(lines).encode()]
        elif reader.form == "xml":
            found[reader.kind] = [
                b'<?xml version="1.0"?><nvidia_smi_log><gpu id="1"><product_name>A</product_name></gpu></nvidia_smi_log>',
                b'<system version="1"><cpu><pci class="0x030200" link_speed="16 GT/s"/></cpu></system>',
                b'<graphs><graph id="0" nchannels="2"/></graphs>',
            ]
        elif reader.form == "items":
            found[reader.kind] = [json.dumps(one).encode() for one in _DOCUMENTS] + [
                pickle.dumps(one, protocol=4) for one in _DOCUMENTS
            ]
        else:
            found[reader.kind] = [b"4: ACTIVE\n", b"255\n", b"400 Gb/sec (4X NDR)\n"]
    return found


_BLOCK = {"state": "inactive", "size": 7, "frames": [{"name": "f", "filename": "a.py", "line": 3}]}
_DOCUMENTS: tuple[object, ...] = (
    {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "args": {"correlation": 3, "device": 0}}]},
    {"entries": [{"collective_seq_id": 1, "process_group": ["0", "a"], "time_created_ns": 5, "state": "started",
                  "input_sizes": [[4, 5]], "profiling_name": "nccl:x"}], "pg_config": {"0": {"desc": "a", "ranks": [0, 1]}}},
    {"segments": [{"total_size": 9, "allocated_size": 2, "stream": 0, "blocks": [_BLOCK]}],
     "device_traces": [[{"action": "oom", "size": 4, "device_free": 1, "frames": []}]]},
    [[-1, 1, 100, 0], [5, 2, 7, 4]],
    {"meta": {"Slurm": {"release": "22"}}, "jobs": [{"job_id": 1, "job_state": "FAILED"}],
     "nodes": [{"name": "a", "state": "down"}]},
    {"header": {"rank": 1, "n_ranks": 2}, "coll_perf": {"coll": "A", "coll_msg_size_bytes": 8, "coll_exec_time_us": 2.5}},
    {"card0": {"GPU use (%)": "5", "VRAM Total Memory (B)": "100"}},
)  # fmt: skip


def changed(start: bytes, chance: random.Random) -> bytes:
    """``start`` with a few bytes, pieces or lines changed."""
    body = bytearray(start[: chance.choice((len(start), len(start), 4000))])
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(body) + 1)
        how = chance.randrange(6)
        if how == 0 and body:
            body[at % len(body)] = chance.randrange(256)
        elif how == 1:
            body[at:at] = chance.choice(_WORDS) * chance.choice((1, 1, 1, 50))
        elif how == 2:
            del body[at : at + chance.randint(1, 40)]
        elif how == 3:
            piece = body[at : at + chance.randint(1, 200)]
            body[at:at] = piece * chance.choice((1, 2, 20))
        elif how == 4:
            rows = bytes(body).split(b"\n")
            chance.shuffle(rows)
            body = bytearray(b"\n".join(rows))
        else:
            number = str(chance.choice((0, -1, 2**31, 2**63, 10**30, chance.random() * 1e9))).encode()
            body[at : at + len(number)] = number
    return bytes(body[:200_000])


def try_one(name: str, content: bytes) -> None:
    """One file read and judged; raises where anything is amiss."""
    before = time.process_time()
    reading = read_bytes(name, content)
    case = Case(readings=(reading,))
    for rule in rules():
        if any(case.has(kind) for kind in rule.needs):
            for said in rule.judge(case):
                str(said)
    json.dumps(dict(reading.facts), allow_nan=False, default=str)
    spent = time.process_time() - before
    if spent > _SLOW_S:
        raise TimeoutError(f"{len(content)} bytes took {spent:.1f} s")


def doctored(_: str, content: bytes) -> None:
    from trilemma.machine.examination import examine
    from trilemma.machine.machine import machine_of

    examine(machine_of([read_bytes("file", content)]))


def linted(name: str, content: bytes) -> None:
    from trilemma.linting.files import lint

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        with contextlib.suppress(InputError):
            lint([path])


def judged(_: str, content: bytes) -> None:
    from trilemma.ask.audited import audit

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        with contextlib.suppress(InputError):
            audit([path])


_THROUGH: dict[str, Callable[[str, bytes], None]] = {"doctor": doctored, "lint": linted, "audit": judged}
_LINTED = {
    "python": b"import torch\nfrom transformers import Trainer, TrainingArguments\nopt = torch.optim.AdamW(model.parameters())\n"
    b"for x, y in loader:\n    loss = model(x).sum()\n    loss.backward()\n    opt.step()\n    opt.zero_grad()\n"
    b"peak_flops = 1979e12\nTrainingArguments(output_dir='o', warmup_ratio=0.1)\n",
    "shell": b"vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 8192 \\\n  --kv-cache-dtype fp8\n"
    b"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --bf16\n",
    "yaml": b"base_model: Qwen/Qwen3-8B\nsequence_len: 2048\nsample_packing: true\n---\nkind: Pod\nspec:\n  containers:\n"
    b"  - name: a\n    image: vllm/vllm-openai:v0.10.0\n    args: [--model, Qwen/Qwen3-8B]\n",
    "json": b'{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 3}}',
    "toml": b"[model]\nname = 'llama3'\n[training]\nsteps = 10\n",
    "notebook": b'{"cells": [{"cell_type": "code", "source": ["import torch\\n", "!pip install x"]}]}',
}
_ENDINGS = {
    "python": "a.py",
    "shell": "a.sh",
    "yaml": "a.yaml",
    "json": "a.json",
    "toml": "a.toml",
    "notebook": "a.ipynb",
}


def run_through(command: str, times: int, seed: int) -> int:
    """Inputs of one of the other commands, until one raises."""
    chance, target = random.Random(seed), _THROUGH[command]
    starts = {name: [one] for name, one in _LINTED.items()} if command == "lint" else samples()
    order = list(starts)
    for at in range(times):
        kind = order[at % len(order)]
        content = changed(chance.choice(starts[kind]), chance)
        before = time.process_time()
        try:
            target(_ENDINGS.get(kind, "file"), content)
            if time.process_time() - before > _SLOW_S:
                raise TimeoutError(f"{len(content)} bytes took {time.process_time() - before:.1f} s")
        except BaseException as error:
            Path("fuzz-crash").write_bytes(content)
            print(
                f"{command} {kind}: {type(error).__name__}: {error} (input {at}, kept in fuzz-crash)", file=sys.stderr
            )
            raise
        if at % 10_000 == 9_999:
            print(f"{at + 1} inputs", flush=True)
    print(f"{times} inputs through {command}: nothing raised")
    return 0


def run(times: int, seed: int, kinds: Sequence[str]) -> int:
    chance = random.Random(seed)
    starts = {kind: one for kind, one in samples().items() if not kinds or kind in kinds}
    names = {kind: "a/mlx5_0/ports/1/counters/link_downed" if kind == "infiniband-port" else "file" for kind in starts}
    order = list(starts)
    for at in range(times):
        kind = order[at % len(order)]
        content = changed(chance.choice(starts[kind]), chance)
        try:
            try_one(names[kind], content)
        except BaseException as error:
            Path("fuzz-crash").write_bytes(content)
            print(f"{kind}: {type(error).__name__}: {error} (input {at}, kept in fuzz-crash)", file=sys.stderr)
            raise
        if at % 10_000 == 9_999:
            print(f"{at + 1} inputs", flush=True)
    print(f"{times} inputs over {len(order)} readers: nothing raised")
    return 0


def run_atheris(arguments: list[str]) -> int:
    import atheris  # type: ignore[import-not-found]

    target: Callable[[bytes], None] = lambda data: try_one("file", data)  # noqa: E731 - what atheris wants is one function
    every_reader(), rules()  # imported before the clock runs
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], *arguments], target)
    atheris.Fuzz()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", action="append", default=[], metavar="KIND")
    parser.add_argument("--through", choices=sorted(_THROUGH), help="another command that reads files")
    parser.add_argument("--atheris", nargs=argparse.REMAINDER, help="hand over to atheris, with its own options behind")
    given = parser.parse_args()
    if given.atheris is not None:
        return run_atheris(given.atheris)
    if given.through is not None:
        return run_through(given.through, given.times, given.seed)
    return run(given.times, given.seed, given.reader)


if __name__ == "__main__":
    sys.exit(main())
