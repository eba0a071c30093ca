"""Passes with weights and caches in the memory of the host: counted by hand, and what must always hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trilemma.formats import catalogue
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.hosts import parse_host
from trilemma.models.quantized.schemes import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import Layout
from trilemma.timing import Machine, PassTime, decode_step, model_work, prefill_pass
from trilemma.timing.host_weights import HOST_LINES, HostPart, split_work

_CARD = find("rtx-4090")
_F16 = catalogue.get("fp16")
_DENSE = requantize(load_model("qwen3-14b"), "Q4_K_M")
_MIXTURE = load_model("gpt-oss-120b")


def _machine(host: str = "DDR5-5600x2") -> Machine:
    cluster = Cluster(accelerator=_CARD, gpus=1, gpus_per_node=1, host=parse_host(host))
    return Machine.serving(cluster, work=model_work(_DENSE, _CARD), engine="llama.cpp")


def _layers(first: int, **more: float) -> HostPart:
    """The first layers of the dense model with their caches."""
    names = {t.name for t in _DENSE.of_part("layers") if (t.layer or 0) < first and len(t.shape) > 1}
    return HostPart(tensors=frozenset(names), layers=frozenset(range(first)), micro_batch=512, **more)  # type: ignore[arg-type]


def _experts(first: int, **more: float) -> HostPart:
    names = {t.name for t in _MIXTURE.of_part("layers") if t.experts and (t.layer or 0) < first}
    return HostPart(tensors=frozenset(names), micro_batch=512, **more)  # type: ignore[arg-type]


def _decode(part: HostPart | None, *, model=_DENSE, batch=1.0, host: str = "DDR5-5600x2", context=1024) -> PassTime:
    work = split_work(model, _CARD, part)
    return decode_step(work, _machine(host), Layout(), batch=batch, context=context, kv_format=_F16)


def _prefill(part: HostPart | None, *, model=_DENSE, tokens=2048.0, host: str = "DDR5-5600x2") -> PassTime:
    work = split_work(model, _CARD, part)
    return prefill_pass(work, _machine(host), Layout(), tokens=tokens, cached=0, kv_format=_F16)


def test_decode_reads_each_weight_on_the_host_once() -> None:
    part = _layers(10)
    held = sum(t.bytes for t in _DENSE.tensors if t.name in part.tensors)
    lines = _decode(part).lines
    # 55 % of two channels of DDR5-5600
    assert lines["host_weights"] == pytest.approx(held / (89.6e9 * 0.55), rel=0.01)
    # 8 KV heads of 128, K and V, 16 bits, 1,024 tokens, 10 layers
    assert lines["host_cache"] == pytest.approx(10 * 2 * 8 * 128 * 2 * 1024 / (89.6e9 * 0.55), rel=0.01)


def test_one_token_reads_its_own_experts_alone() -> None:
    seconds = _decode(_experts(36), model=_MIXTURE).lines["host_weights"]
    # 4 of 128 experts, three matrices of 2,880 x 2,880 in MXFP4 (4.25 bits), 36 layers
    assert seconds == pytest.approx(36 * 4 * 3 * 2880 * 2880 * 4.25 / 8 / (89.6e9 * 0.55), rel=0.01)


def test_what_leaves_the_card_is_counted_once() -> None:
    whole = model_work(_DENSE, _CARD)
    for part in (_layers(10), _layers(40)):
        work = split_work(_DENSE, _CARD, part)
        assert work.host is not None
        assert work.flops_per_token() == pytest.approx(whole.flops_per_token())
        kept = sum(p.bytes for p in work.dense) + sum(p.bytes for p in work.host.work.dense)
        assert kept == sum(p.bytes for p in whole.dense)
        assert sum(n for _, n in work.mixers) + sum(n for _, n in work.host.work.mixers) == 40
    work = split_work(_MIXTURE, _CARD, _experts(30))
    assert work.host is not None
    matrices = [[e.layers for e in one.experts if e.bits < 16] for one in (work, work.host.work)]
    assert matrices == [[6], [30]]
    assert {e.top_k for e in work.host.work.experts} == {4}


def test_nothing_on_the_host_is_the_pass_as_it_was() -> None:
    assert split_work(_DENSE, _CARD, None) is model_work(_DENSE, _CARD)
    assert not set(HOST_LINES) & set(_decode(None).lines)


def test_prompts_copy_weights_once_for_each_micro_batch() -> None:
    part = _layers(10, offload_rows=32)
    held = sum(t.bytes for t in _DENSE.tensors if t.name in part.tensors)
    seconds = _prefill(part, tokens=2048.0).lines["host_weights"]
    # four passes of 512 tokens over PCIe 4 x16 from locked memory
    assert seconds == pytest.approx(4 * held / (31.5077e9 * 0.8), rel=0.001)
    wider = replace(part, micro_batch=2048)
    assert _prefill(wider, tokens=2048.0).lines["host_weights"] == pytest.approx(seconds / 4)
    mapped = replace(part, locked=False)
    assert _prefill(mapped, tokens=2048.0).lines["host_weights"] == pytest.approx(seconds * 0.8 / 0.5)


def test_few_rows_stay_on_the_processor() -> None:
    part = _layers(10, offload_rows=32)
    few, many = _decode(part, batch=31.0), _decode(part, batch=32.0)
    assert few.parts["host_weights", "interconnect"] == 0
    assert many.parts["host_weights", "host"] == 0
    assert many.parts["host_weights", "interconnect"] > 0


@pytest.mark.parametrize("model", ["dense", "mixture"])
@pytest.mark.parametrize("batch", [1.0, 4.0, 31.0, 64.0])
def test_faster_memory_is_never_slower(model: str, batch: float) -> None:
    chosen, part = (
        (_DENSE, _layers(20, offload_rows=32)) if model == "dense" else (_MIXTURE, _experts(20, offload_rows=32))
    )
    hosts = ("20", "40", "89.6", "200", "500")
    seconds = [float(_decode(part, model=chosen, batch=batch, host=host).total_s) for host in hosts]
    assert seconds == sorted(seconds, reverse=True)
    prompts = [float(_prefill(part, model=chosen, host=host).total_s) for host in hosts]
    assert prompts == sorted(prompts, reverse=True)


@pytest.mark.parametrize("batch", [1.0, 8.0])
def test_more_layers_on_the_card_are_never_slower(batch: float) -> None:
    seconds = [float(_decode(_layers(first), batch=batch).total_s) for first in range(0, 41, 4)]
    assert seconds == sorted(seconds)
    mixed = [float(_decode(_experts(first), model=_MIXTURE, batch=batch).total_s) for first in range(0, 37, 4)]
    assert mixed == sorted(mixed)


def test_arrays_answer_as_numbers_do() -> None:
    part = _layers(10, offload_rows=32)
    batches, contexts = np.array([1.0, 8.0, 31.0, 32.0, 64.0]), np.array([128.0, 1024.0, 4096.0, 512.0, 2048.0])
    table = _decode(part, batch=batches, context=contexts)  # type: ignore[arg-type]
    for at, (batch, context) in enumerate(zip(batches, contexts, strict=True)):
        alone = _decode(part, batch=float(batch), context=float(context))  # type: ignore[arg-type]
        assert np.broadcast_to(table.total_s, batches.shape)[at] == pytest.approx(float(alone.total_s), rel=1e-12)
        for name, seconds in alone.lines.items():
            assert np.broadcast_to(table.lines[name], batches.shape)[at] == pytest.approx(float(seconds), rel=1e-12)


def test_lines_and_resources_sum_to_the_pass() -> None:
    for one in (_decode(_layers(10)), _prefill(_layers(10, offload_rows=32)), _prefill(_experts(10), model=_MIXTURE)):
        assert sum(one.lines.values()) == pytest.approx(float(one.total_s))
        assert sum(one.resources.values()) == pytest.approx(float(one.total_s))


def test_no_pass_beats_the_datasheet() -> None:
    for part, model in ((_layers(10), _DENSE), (_experts(20), _MIXTURE)):
        work, machine = split_work(model, _CARD, part), _machine()
        step = {"batch": 1.0, "context": 1024, "kv_format": _F16}
        real = decode_step(work, machine, Layout(), **step)  # type: ignore[arg-type]
        ideal = decode_step(work, machine.at_datasheet(), Layout(), **step)  # type: ignore[arg-type]
        assert ideal.lines["host_weights"] == pytest.approx(0.55 * float(real.lines["host_weights"]))
        assert ideal.lines["handover"] == 0


def test_weights_read_by_the_card_take_pcie_in_every_pass() -> None:
    part = replace(_layers(10), layers=frozenset(), read_by_card=True)
    held = sum(t.bytes for t in _DENSE.tensors if t.name in part.tensors)
    lines = _decode(part).lines
    assert lines["host_weights"] == pytest.approx(held / (31.5077e9 * 0.8), rel=0.001)
    assert "host_cache" not in lines


def test_weights_on_a_superchips_host_pass_over_its_own_link() -> None:
    # Llama-3-70B in BF16 with 70 GiB outside one GH200: 75.2 GB over 0.8 x 450 GB/s beside 61.4 GiB of HBM, 4.1 to 4.6
    # tokens a second measured (vllm-project/vllm PR 6496 and 6317)
    model, cluster = load_model("llama-3.1-70b"), Cluster.of(find("gh200-96gb"), 1)
    names, held = set(), 0
    for tensor in model.of_part("layers"):
        if held < 70 * 2**30:
            names.add(tensor.name)
            held += tensor.bytes
    part = HostPart(tensors=frozenset(names), read_by_card=True)
    work = split_work(model, cluster.accelerator, part)
    machine = Machine.serving(cluster, work=model_work(model, cluster.accelerator), engine="vllm")
    step = decode_step(work, machine, Layout(), batch=1.0, context=512, kv_format=_F16)
    assert float(step.lines["host_weights"]) == pytest.approx(held / (0.8 * 450e9), rel=0.01)
    assert 4.1 * 0.85 <= 1 / float(step.total_s) <= 4.6 * 1.15
