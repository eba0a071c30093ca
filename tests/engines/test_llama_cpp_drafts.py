"""What drafting and towers cost llama.cpp, by what its builds print and measure."""

from __future__ import annotations

from typing import Any

import pytest

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.llama_cpp.read import read
from trilemma.hardware.catalogue import find
from trilemma.models.quantized.schemes import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import MIB


def _start(model: str, *, gpu: str = "rtx-3090", draft: Draft | None = None, pp: int = 1, **options: Any) -> StartUp:
    return engines.get("llama.cpp").start_up(
        model=requantize(load_model(model), "Q4_K_M"), accelerator=find(gpu), layout=Layout(pp=pp), draft=draft,
        options=ServeOptions(max_seqs=1, **options),
    )  # fmt: skip


_MTP = Draft(method="mtp", tokens=2)


@pytest.mark.parametrize(("context", "measured_mib"), [(131072, 1292), (65536, 914)])
def test_layers_that_draft_cost_weights_cache_and_logits(context: int, measured_mib: float) -> None:
    """Qwen3.8-27B Q4_K_M on a 3090 with q4_0 caches, sudoingX/qwen38-mtp: +1,292 MiB at 128K, +914 at 64K."""
    asked = {"context": context, "kv_dtype": "q4_0", "extra": {"cache-type-v": "q4_0"}}
    plain, drafting = _start("qwen3.8-27b", **asked), _start("qwen3.8-27b", draft=_MTP, **asked)
    more = (float(drafting.ledger.total()) - float(plain.ledger.total())) / MIB
    assert more == pytest.approx(measured_mib, rel=0.1)
    assert more == pytest.approx(float(drafting.ledger["draft_model"].bytes) / MIB)
    logits = 512 * 248320 * 4
    cache = context * 4 * (256 + 256) * 2
    assert float(drafting.ledger["draft_model"].bytes) == pytest.approx(251.1 * MIB + cache + logits, rel=1e-3)


def test_the_cache_of_drafts_has_a_format_of_its_own() -> None:
    wide = _start("qwen3.8-27b", draft=_MTP, context=131072)
    narrow = _start("qwen3.8-27b", draft=_MTP, context=131072,
                    extra={"cache-type-k-draft": "q8_0", "cache-type-v-draft": "q8_0"})  # fmt: skip
    saved = float(wide.ledger["draft_model"].bytes) - float(narrow.ledger["draft_model"].bytes)
    assert saved == pytest.approx(131072 * 2048 * (2 - 34 / 32))


def test_some_families_keep_a_cache_of_every_layer_for_drafts() -> None:
    """ggml-org/llama.cpp issue 28626: the draft context of GLM-4.6 allocates 93 layers where one drafts."""
    start = _start("glm-4.6", gpu="h200-sxm", draft=_MTP, pp=4, context=16384)
    one = 16384 * 8 * (128 + 128) * 2
    assert float(start.ledger["draft_model"].bytes) > 93 * one


def test_a_draft_model_of_its_own_is_counted() -> None:
    start = _start("qwen3-32b", gpu="rtx-5090", draft=Draft(method="draft", tokens=4, model="qwen3-0.6b"), context=8192)
    small = load_model("qwen3-0.6b")
    assert float(start.ledger["draft_model"].bytes) > sum(t.bytes for t in small.tensors if t.part == "layers")
    unknown = _start("qwen3-32b", gpu="rtx-5090", draft=Draft(method="draft", model="/no/such.gguf"), context=8192)
    assert unknown.ledger.get("draft_model") is None
    assert any(note.code == "draft-not-counted" for note in unknown.warnings)


@pytest.mark.parametrize(
    ("words", "on_card"),
    [
        ("-hf unsloth/Qwen3.8-27B-GGUF:Q4_K_M", True),
        ("-hf unsloth/Qwen3.8-27B-GGUF:Q4_K_M --no-mmproj", False),
        ("-hf unsloth/Qwen3.8-27B-GGUF:Q4_K_M --no-mmproj-offload", False),
        ("-m Qwen3.8-27B-Q4_K_M.gguf", False),
        ("-m Qwen3.8-27B-Q4_K_M.gguf --mmproj mmproj-BF16.gguf", True),
    ],
)
def test_a_tower_is_on_the_card_as_the_flags_say(words: str, on_card: bool) -> None:
    assert read(["llama-server", *words.split()]).plan.pool.options.text_only is not on_card
