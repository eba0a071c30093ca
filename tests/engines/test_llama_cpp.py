"""llama.cpp: exact caches, what goes to which card and what stays on the host, --fit, command lines both ways."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import pytest

import trilemma as tl
from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.launch import on_every_card
from trilemma.engines.llama_cpp.facts import for_version
from trilemma.engines.llama_cpp.placement import layers_of_card
from trilemma.engines.llama_cpp.read import read
from trilemma.engines.llama_cpp.write import write
from trilemma.engines.verdict import likeliest
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB, MIB

_ON_CARDS = {"n-gpu-layers": "all", "fit": "off"}
_MIXTURE = "unsloth/Qwen3.6-35B-A3B-GGUF:Q4_K_M"


def _start(
    model: str, gpu: str = "rtx-4090", layout: Layout | None = None, *, version: str = "b10800", **options: Any
) -> StartUp:
    return engines.get("llama.cpp").start_up(
        model=load_model(model),
        accelerator=find(gpu),
        layout=layout or Layout(),
        options=ServeOptions(**options),
        version=version,
    )  # fmt: skip


def test_cache_of_llama_2_70b() -> None:
    # 2 · 80 layers · 8 heads · 128 · 2 bytes · 2048 tokens = 640 MiB (ollama/ollama issue 1800, llama.cpp's own line).
    start = _start("meta-llama/Llama-2-70b-hf", "h200-sxm", context=2048, max_seqs=1, extra=_ON_CARDS)
    assert float(start.pool.need_bytes) == 640 * MIB
    assert start.pool.tokens == 2048


def test_compute_buffer_of_llama_3_8b() -> None:
    # 258.50 MiB at a micro-batch of 512 with flash attention: 512 · 128,256 logits and 512 · 4,096 hidden values of 4 bytes.
    start = _start("llama-3.1-8b", context=512, max_seqs=1, extra=_ON_CARDS)
    assert float(start.ledger["logits"].bytes) / MIB == pytest.approx(250.5)
    low, high = (
        sum(float(getattr(start.ledger[n], side)) for n in ("logits", "activations")) for side in ("low", "high")
    )
    assert low < 258.5 * MIB < high


def test_cards_in_turn_of_a_long_context() -> None:
    # ggml-org/llama.cpp issue 23679, second of two RTX 4090: model 9,109 MiB, context 9,927 MiB.
    start = _start(
        "unsloth/Qwen3.6-35B-A3B-GGUF:IQ4_NL", layout=Layout(pp=2), context=262144, max_seqs=4, extra=_ON_CARDS, text_only=True
    )  # fmt: skip
    assert float(start.ledger["weights"].bytes) / MIB == pytest.approx(9109, rel=0.06)
    context = sum(float(start.ledger[name].bytes) for name in ("kv_cache", "state_cache"))
    assert context / MIB == pytest.approx(9927, rel=0.06)


@pytest.mark.parametrize(
    ("keys", "values", "share"), [("q8_0", None, 8.5 / 16), ("q4_0", None, 4.5 / 16), ("q8_0", "q4_0", 6.5 / 16)]
)
def test_cache_types(keys: str, values: str | None, share: float) -> None:
    extra = _ON_CARDS | ({"cache-type-v": values} if values else {})
    plain = _start("llama-3.1-8b", context=4096, max_seqs=1, extra=_ON_CARDS)
    narrow = _start("llama-3.1-8b", context=4096, max_seqs=1, kv_dtype=keys, extra=extra)
    assert float(narrow.pool.need_bytes) / float(plain.pool.need_bytes) == pytest.approx(share)


def test_slots_share_a_cache_or_have_their_own() -> None:
    alone, shared = (
        _start("llama-3.1-8b", context=4096, max_seqs=4, extra=_ON_CARDS | {"kv-unified": unified})
        for unified in (False, True)
    )
    assert float(alone.pool.need_bytes) == 4 * float(shared.pool.need_bytes)


def test_windows_keep_what_they_look_back_on() -> None:
    windows = _start("google/gemma-3-27b-it", "h100-sxm", context=32768, max_seqs=1, extra=_ON_CARDS)
    full = _start("google/gemma-3-27b-it", "h100-sxm", context=32768, max_seqs=1, extra=_ON_CARDS | {"swa-full": True})
    assert float(full.pool.need_bytes) > 4 * float(windows.pool.need_bytes)
    per_layer = 2 * 16 * 128 * 2
    assert float(windows.pool.need_bytes) == per_layer * (10 * 32768 + 52 * 1536)


def test_experts_on_the_host() -> None:
    everything = _start(_MIXTURE, "h100-sxm", context=8192, extra=_ON_CARDS)
    half = _start(_MIXTURE, "h100-sxm", context=8192, extra=_ON_CARDS | {"n-cpu-moe": 20})
    pattern = _start(
        _MIXTURE, "h100-sxm", context=8192,
        extra=_ON_CARDS | {"override-tensor": r"blk\.(0|1|2|3|4|5|6|7|8|9|1[0-9])\.ffn_.*_exps=CPU"},
    )  # fmt: skip
    none = _start(_MIXTURE, "h100-sxm", context=8192, extra=_ON_CARDS | {"cpu-moe": True})
    moved = float(everything.ledger["weights"].bytes) - float(half.ledger["weights"].bytes)
    assert moved == pytest.approx(float(half.host_bytes) - float(everything.host_bytes))
    assert float(pattern.ledger["weights"].bytes) == float(half.ledger["weights"].bytes)
    assert float(none.host_bytes) - float(everything.host_bytes) == pytest.approx(2 * moved)


@pytest.mark.parametrize("pattern", ["(a+)+$=CPU", "(x|x)*=CPU", "a{1,9}=CPU", "[=CPU", "noplace"])
def test_patterns_that_are_not_simple_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match="--override-tensor"):
        _start("llama-3.1-8b", context=4096, extra={"override-tensor": pattern})


def test_fit_cuts_the_context_then_layers() -> None:
    shorter = _start(_MIXTURE)
    assert 4096 < shorter.context < 262144
    assert likeliest(shorter)[0] == "ok"
    fewer = _start("bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M")
    assert fewer.context == 4096
    assert {warning.code for warning in fewer.warnings} >= {"context-cut", "layers-on-host", "on-host"}
    assert likeliest(fewer)[0] == "ok"
    without = _start("bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M", context=4096, extra=_ON_CARDS)
    assert likeliest(without)[0] == "oom_load"


def test_fit_moves_as_few_experts_as_will_do_before_layers() -> None:
    start = _start("gpt-oss-120b", context=8192)
    note = next(warning for warning in start.warnings if warning.code == "experts-on-host")
    away = int(note.message.split("experts of ")[1].split()[0])
    assert start.on_host is not None
    assert start.on_host.layers == frozenset()
    assert len({name.split(".")[2] for name in start.on_host.tensors}) == away
    off = {"n-gpu-layers": "all", "fit": "off"}
    more, fewer = (_start("gpt-oss-120b", context=8192, extra={**off, "n-cpu-moe": n}) for n in (away, away - 1))
    margin = 1024 * MIB
    assert float(more.ledger.total()) <= float(more.capacity_bytes) - margin < float(fewer.ledger.total())


def test_fit_moves_nothing_beside_options_that_place_tensors() -> None:
    """common/fit.cpp: "model_params::tensor_buft_overrides already set by user, abort"."""
    start = _start("gpt-oss-120b", context=8192, extra={"n-cpu-moe": 4})
    assert "fit-without-effect" in {warning.code for warning in start.warnings}
    assert likeliest(start)[0] == "oom_load"


@pytest.mark.parametrize(
    ("extra", "layers", "rows", "locked"),
    [
        ({"n-gpu-layers": "20"}, 45, 32.0, False),
        ({"n-gpu-layers": "20", "op-offload": False, "no-mmap": True}, 45, float("inf"), True),
        ({"n-gpu-layers": "20", "load-mode": "none"}, 45, 32.0, True),
        ({"n-gpu-layers": "99", "kv-offload": False}, 64, 32.0, False),
        ({"n-gpu-layers": "0"}, 64, 32.0, False),
    ],
)
def test_what_each_pass_needs_of_the_host(extra: dict[str, Any], layers: int, rows: float, locked: bool) -> None:
    part = _start("unsloth/Qwen3-32B-GGUF:Q4_K_M", context=4096, extra={**extra, "fit": "off"}).on_host
    assert part is not None
    assert len(part.layers) == layers
    assert (part.offload_rows, part.locked, part.micro_batch) == (rows, locked, 512.0)
    # 7 matrices of each layer whose weights are there, and the output matrix where no layer is on a card
    weights = 0 if extra["n-gpu-layers"] == "99" else 7 * layers
    assert len(part.tensors) == weights + (extra["n-gpu-layers"] == "0")


def test_nothing_but_the_embedding_on_the_host_is_nothing_for_a_pass() -> None:
    start = _start("unsloth/Qwen3-8B-GGUF:Q4_K_M", context=4096, extra=_ON_CARDS)
    assert float(start.host_bytes) > 0
    assert start.on_host is None


def test_cards_of_several_kinds_take_layers_by_their_memory() -> None:
    cards = (find("rtx-4090"), find("rtx-3060-12gb"))
    start = engines.get("llama.cpp").start_up(
        model=load_model("unsloth/Qwen3-32B-GGUF:Q4_K_M"), accelerator=cards[0], layout=Layout(pp=2),
        options=ServeOptions(context=4096, extra=_ON_CARDS), version="b10800", cards=cards,
    )  # fmt: skip
    held = [len(layers) for _, layers in start.on_cards]
    assert sum(held) == 64
    # 23.5 and 11.6 GiB: two thirds and one third of 64 layers and the output matrix
    assert held == [44, 20]
    # the tightest card is the one shown, against its own memory
    assert float(start.capacity_bytes) < 13 * GIB


def test_fit_leaves_its_margin() -> None:
    start = _start(_MIXTURE)
    assert float(start.capacity_bytes) - float(start.ledger.total()) >= 1024 * MIB - 64 * MIB


@pytest.mark.parametrize(
    ("on_cards", "ends", "held"),
    [
        (81, [0.5, 1.0], [(0, 41, False), (41, 80, True)]),
        (81, [0.75, 1.0], [(0, 61, False), (61, 80, True)]),
        (10, [1.0], [(71, 80, True)]),
        (0, [1.0], [(81, 81, False)]),
    ],
)
def test_layers_of_cards(on_cards: int, ends: list[float], held: list[tuple[int, int, bool]]) -> None:
    assert [layers_of_card(80, on_cards, ends, card) for card in range(len(ends))] == held


def test_uneven_split() -> None:
    even = _start("llama-3.1-70b", "h200-sxm", Layout(pp=2), context=4096, extra=_ON_CARDS)
    uneven = _start("llama-3.1-70b", "h200-sxm", Layout(pp=2), context=4096, extra=_ON_CARDS | {"tensor-split": "3,1"})
    assert float(uneven.ledger["weights"].bytes) == pytest.approx(1.5 * float(even.ledger["weights"].bytes), rel=0.05)
    with pytest.raises(InputError, match="--tensor-split"):
        _start("llama-3.1-70b", "h200-sxm", Layout(pp=2), context=4096, extra=_ON_CARDS | {"tensor-split": "a,b"})


def test_tables_and_single_plans_agree() -> None:
    pp = np.array([1, 2, 4])
    whole = engines.get("llama.cpp").start_up(
        model=load_model("llama-3.1-8b"), accelerator=find("rtx-4090"), layout=Layout(pp=pp),
        options=ServeOptions(context=8192), version="b10800",
    )  # fmt: skip
    for row, degree in enumerate(pp):
        one = _start("llama-3.1-8b", layout=Layout(pp=int(degree)), context=8192)
        assert float(whole.pool.available_bytes[row]) == pytest.approx(float(one.pool.available_bytes))


def test_older_builds_do_less_by_themselves() -> None:
    assert (for_version("b6170").context, for_version("b10800").context) == (4096, 0)
    old = _start("llama-3.1-8b", version="b6170")
    assert float(old.ledger["weights"].bytes) == 0
    assert float(old.host_bytes) > 14 * GIB
    assert not for_version("b999999").known


def test_keys_of_8_bits_leave_values_at_16() -> None:
    """Llama-3.2-3B of 4,096 cells: 343 MiB with ``-ctk q8_0`` alone, 448 without, 238 with both."""
    held = {}
    for flags in ("", "-ctk q8_0", "-ctk q8_0 -ctv q8_0"):
        said = tl.check(
            f"llama-server -hf bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_0 -c 4096 -np 1 {flags}", gpu="l4"
        ).to_dict()
        held[flags] = next(line["bytes"] for line in said["memory"]["items"] if line["name"] == "kv_cache") / MIB
    assert held == {"": 448, "-ctk q8_0": 343, "-ctk q8_0 -ctv q8_0": 238}


def test_commands_both_ways() -> None:
    command = read(
        shlex.split(
            "llama-server -hf org/Name-GGUF:Q4_K_M -ngl 99 -c 32768 -np 4 -ub 1024 -ctk q8_0 -ctv q8_0 -fa on -ts 3,1"
            " -ncmoe 10 --no-kv-unified --api-key secret --port 1"
        ),
        version="b10800",
    )
    options = command.plan.pool.options
    assert command.model == "org/Name-GGUF:Q4_K_M"
    assert command.plan.pool.layout == Layout(pp=2)
    assert (options.context, options.max_seqs, options.max_batched_tokens, options.kv_dtype) == (8192, 4, 1024, "q8_0")
    assert options.extra["n-cpu-moe"] == 10
    assert "secret" not in str(command)
    words = write(model=command.model, plan=command.plan)
    assert read(words, version="b10800").plan == command.plan
    assert words[words.index("--ctx-size") + 1] == "32768"


def test_variables_and_every_card() -> None:
    command = read(
        ["LLAMA_ARG_CTX_SIZE=8192", "LLAMA_ARG_N_GPU_LAYERS=99", "llama-server", "-m", "m.gguf", "-c", "4096"]
    )
    assert command.plan.pool.options.context == 4096
    assert command.plan.pool.options.extra["n-gpu-layers"] == "99"
    assert command.plan.pool.options.text_only
    assert on_every_card(command, 4).plan.pool.layout == Layout(pp=4)
    rows = read(["llama-server", "-m", "m.gguf", "-sm", "row"])
    assert on_every_card(rows, 2).plan.pool.layout == Layout(tp=2)
    one = read(["llama-server", "-m", "m.gguf", "-sm", "none"])
    assert on_every_card(one, 4).plan.pool.layout == Layout()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("-c many", "not a whole number"),
        ("-np 0", "--parallel 0"),
        ("", "names no model"),
    ],
)
def test_bad_commands(words: str, says: str) -> None:
    model = "-m m.gguf" if words else ""
    with pytest.raises(InputError, match=says):
        read(f"llama-server {model} {words}".split())


def test_bad_options_are_errors() -> None:
    for options in ({"kv_dtype": "fp8"}, {"extra": {"n-gpu-layers": "x"}}, {"extra": {"fit-target": "y"}}):
        with pytest.raises(InputError):
            _start("llama-3.1-8b", context=4096, **options)
    with pytest.raises(InputError, match="loads GGUF files"):
        _start("deepseek-ai/DeepSeek-R1", "h200-sxm", context=4096)
    with pytest.raises(InputError, match="--dp 2"):
        _start("llama-3.1-8b", layout=Layout(dp=2), context=4096)


def test_drafts() -> None:
    command = read(["llama-server", "-m", "m.gguf", "-md", "d.gguf", "--spec-draft-n-max", "5"], version="b10800")
    assert command.plan.pool.draft == Draft(method="draft", tokens=5, model="d.gguf")
    plan = Plan(engine=EngineRef(name="llama.cpp"), pools=(Pool(draft=command.plan.pool.draft),))
    assert read(write(model="m.gguf", plan=plan)).plan.pool.draft == command.plan.pool.draft


def test_tables_of_slots_are_answered_row_by_row() -> None:
    """``start_up`` takes arrays in ``max_seqs``: each row is the start of that many slots."""
    question = {"model": load_model("llama-3.1-8b"), "accelerator": find("h200-sxm"), "layout": Layout(pp=1)}
    table = engines.get("llama.cpp").start_up(**question, options=ServeOptions(context=4096, max_seqs=np.array([1, 8])))
    for row, slots in enumerate((1, 8)):
        one = engines.get("llama.cpp").start_up(**question, options=ServeOptions(context=4096, max_seqs=slots))
        assert table.pool.need_bytes[row] == one.pool.need_bytes
    assert table.pool.need_bytes[1] == 8 * table.pool.need_bytes[0]


@pytest.mark.parametrize(
    ("model", "tower_gib"), [("gemma-3-27b", 0.79), ("llama-4-scout", 1.62)],
)  # fmt: skip
def test_a_file_of_the_language_model_alone_loads_no_tower(model: str, tower_gib: float) -> None:
    """llama-server -m FILE loads a tower where --mmproj names it (tools/server/README.md); plan and check of its command said
    1.6 GiB apart."""
    asked = {"isl": 1024, "osl": 128, "concurrency": 4}
    plan = tl.fit(model, "h200-sxm:1", engine="llama.cpp", precision="Q4_K_M", **asked)
    assert plan.memory.ledger.get("vision") is None
    assert f"the vision tower of {tower_gib} GiB is not loaded" in " ".join(one.message for one in plan.warnings)
    again = tl.check(plan.command, gpu="h200-sxm:1", **asked)
    assert again.memory.total == plan.memory.total
    assert again.command == plan.command


def test_slots_are_as_long_as_the_engine_pads_them() -> None:
    """1,040 tokens asked for 512 slots are 1,280 each (llama-context.cpp: n_ctx_seq padded to 256), and 512 of them."""
    plan = tl.fit(
        "qwen3-30b-a3b", "b200-sxm:1", engine="llama.cpp", precision="Q4_K_M", isl=1024, osl=16, max_seqs=512, concurrency=64
    )  # fmt: skip
    assert plan.cache is not None
    assert (plan.cache.max_context, plan.cache.max_concurrency) == (1280, 512)


def test_windows_that_it_does_not_use_are_cached_at_full_length() -> None:
    """Phi-3-mini-4k at 4,096 tokens: 1,536 MiB in 4,096 cells of 32 layers, though its windows are of 2,047 tokens."""
    words = "llama-server -m Phi-3-mini-4k-instruct-Q4_K_M.gguf -c 4096 -np 1 -ngl 99"
    found = tl.check(words, gpu="rtx-4090").to_dict()
    cache = next(line["bytes"] for line in found["memory"]["items"] if line["name"] == "kv_cache")
    assert cache == 1536 * MIB
