"""Decode context parallelism: what its ranks exchange in each attention layer, by hand and as a property."""

import numpy as np
import pytest
from timing_cases import BF16, FP8, llama_70b

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import Layout
from trilemma.timing import Machine, decode_step, model_work, prefill_pass


def steps(model, gpu, layout, **load):
    cluster = Cluster.of(find(gpu), 8)
    work = model_work(model, cluster.accelerator)
    return decode_step(work, Machine.of(cluster), layout, kv_format=BF16, **load)


def test_seconds_of_one_step_by_hand():
    # 8 of 64 query heads a rank at TP8; two ranks share tokens out. 80 layers, 16 sequences, 450 GB/s at a share of 0.85:
    # queries 16 x 8 x 128 x 2 B, log-sum-exp of 16 heads x 4 B, partial outputs 16 x 8 x 128 x 2 B, 16 us each
    found = steps(llama_70b(FP8), "h100-sxm", Layout(tp=8, dcp=2), batch=16, context=8192).lines["context_exchange"]
    blocks = (16 * 8 * 128 * 2, 16 * 8 * 2 * 4, 16 * 8 * 128 * 2)
    assert float(found) == pytest.approx(80 * sum(16e-6 + block / (450e9 * 0.85) for block in blocks))


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.1-70b"])
@pytest.mark.parametrize("gpu", ["h200-sxm", "l40s"])
def test_sharing_tokens_out_is_never_free_and_saves_only_cache_traffic(name, gpu):
    model, dcp = load_model(name), np.array([1, 2, 4, 8])
    layout = Layout(tp=np.full(4, 8), dcp=dcp)
    found = steps(model, gpu, layout, batch=8, context=32768)
    exchanged = found.lines["context_exchange"]
    assert exchanged[0] == 0
    assert np.all(np.diff(exchanged) > 0)
    assert np.all(np.diff(found.lines["attention"]) <= 0)
    short = steps(model, gpu, layout, batch=8, context=16).total_s
    assert np.all(short[1:] > short[0])
    np.testing.assert_allclose(found.total_s, sum(found.lines.values()))


def test_flops_of_attention_stay_since_each_rank_works_for_the_heads_of_all():
    mixer = next(iter(load_model("deepseek-v3").mixers))
    alone, shared = (mixer.decode_flops(np.float64(4096), tp=8, dcp=dcp) for dcp in (1, 4))
    assert float(alone) == float(shared)


def test_prompts_of_latent_attention_gather_no_queries():
    layout, cluster = Layout(tp=8, dcp=8), Cluster.of(find("h200-sxm"), 8)
    for name, exchanged in (("deepseek-v3", False), ("llama-3.1-70b", True)):
        work = model_work(load_model(name), cluster.accelerator)
        found = prefill_pass(work, Machine.of(cluster), layout, tokens=2048, cached=0, kv_format=BF16)
        assert (float(found.lines["context_exchange"]) > 0) is exchanged
