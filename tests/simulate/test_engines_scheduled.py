"""Which engines are simulated, by which of their own rules."""

from __future__ import annotations

from typing import Any

import pytest

import trilemma as tl
from trilemma.errors import InputError


def asked(engine: str, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"arrivals": "burst", "isl": 256, "osl": 64, "requests": 8, "seed": 1} | more
    document: dict[str, Any] = tl.simulate("llama-3.1-8b", "h100-sxm", engine=engine, **given).to_dict()
    return document


@pytest.mark.parametrize(("slots", "at_once"), [(None, 1.0), (4, 4.0)])
def test_ollama_answers_as_many_at_once_as_it_has_slots(slots: int | None, at_once: float) -> None:
    """envconfig/config.go: OLLAMA_NUM_PARALLEL is 1 unless set."""
    found = asked("ollama", context=2048, max_seqs=slots)
    assert found["completed"] == 8
    assert found["mean_running"] == pytest.approx(at_once, rel=0.1)


@pytest.mark.parametrize("engine", ["llama.cpp", "lm-studio", "ollama"])
@pytest.mark.parametrize("slots", [None, 4])
def test_the_longest_request_is_that_of_fit(engine: str, slots: int | None) -> None:
    """llama.cpp tools/server, n_ctx_slot: a cache that is cut holds --parallel times the context, one for all all of it."""
    most = tl.fit("llama-3.1-8b", "h100-sxm", engine=engine, context=4096, max_seqs=slots)
    assert most.to_dict()["kv_cache"]["max_context"] == 4096
    within = asked(engine, context=4096, max_seqs=slots, isl=4000, osl=90, requests=4)
    beyond = asked(engine, context=4096, max_seqs=slots, isl=4000, osl=128, requests=4)
    assert (within["completed"], beyond["rejected"]) == (4, 4)


def test_lmdeploy_takes_all_in_as_they_come_and_finds_no_prefixes() -> None:
    found = asked("lmdeploy", arrivals="users:4", turns=3, think=1)
    assert found["completed"] == 8
    assert found["cache"]["token_hit_rate"] == 0.0  # messages.py: enable_prefix_caching False
    assert asked("vllm", arrivals="users:4", turns=3, think=1)["cache"]["token_hit_rate"] > 0


def test_what_schedules_by_rules_that_are_not_known_is_refused() -> None:
    from trilemma.simulation.serving.schedulers import scheduler_of

    with pytest.raises(InputError, match=r"how ollama 0\.32\.15 keeps caches in the host's memory is not known here"):
        asked("ollama@0.32.15", kv_offload=8)
    with pytest.raises(InputError, match="with --backend pytorch is not known here"):
        scheduler_of("lmdeploy", "0.16.0", extra={"backend": "pytorch"})
    with pytest.raises(InputError, match=r"how mlx-lm 0\.32\.0 schedules is not known here; use one of vllm"):
        scheduler_of("mlx-lm", "0.32.0")
