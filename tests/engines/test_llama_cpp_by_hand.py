"""llama.cpp's cards and host counted tensor by tensor: layers of each card, experts left behind, buffers, what ``--fit`` chooses.

src/llama-model.cpp (get_layer_buft_list), src/llama-kv-cache*.cpp, src/llama-graph.cpp, common/fit.cpp, common/arg.cpp.
Llama 3.1 8B: 32 layers, hidden 4,096, feed-forward 14,336, 32 heads and 8 KV heads of 128, 128,256 tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.llama_cpp.cards import Choices, cells_of, compute_bytes
from trilemma.engines.llama_cpp.choices import least
from trilemma.engines.llama_cpp.facts import for_version
from trilemma.engines.llama_cpp.placement import LayerBytes, host_part, layers_of_card, parts_of_cards, splits
from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import GIB, MIB

DENSE, MIXTURE = "llama-3.1-8b", "qwen3-30b-a3b"
FACTS = for_version("b10800")
FIXED = {"n-gpu-layers": "all", "fit": "off"}


def start(
    model: str = DENSE, gpu: str = "rtx-4090", layout: Layout | None = None, *, version: str = "b10800",
    free: float | None = None, **options: Any,
) -> StartUp:  # fmt: skip
    return engines.get("llama.cpp").start_up(
        model=load_model(model), accelerator=find(gpu), layout=layout or Layout(), options=ServeOptions(**options),
        version=version, free_bytes=free,
    )  # fmt: skip


def size(found: StartUp, name: str) -> float:
    one = found.ledger.get(name)
    return 0.0 if one is None else float(one.bytes)


def of(model: str, *, part: str = "layers", roles: tuple[str, ...] = (), layers: range | None = None) -> float:
    """Bytes of the tensors of a part, of layers and of roles."""
    return sum(
        tensor.bytes for tensor in load_model(model).tensors
        if tensor.part == part and (not roles or tensor.role.partition(".")[0] in roles)
        and (layers is None or tensor.layer in layers)
    )  # fmt: skip


def test_all_layers_and_the_output_matrix_are_on_the_card() -> None:
    found = start(context=4096, extra=FIXED)
    assert size(found, "weights") == of(DENSE, layers=range(32)) + of(DENSE, part="head")
    assert float(found.host_bytes) == of(DENSE, part="embedding")


@pytest.mark.parametrize("layers", [0, 1, 8, 32, 33, 99])
def test_layers_that_are_left_on_the_host(layers: int) -> None:
    """``-ngl n`` takes the last n of 33, the output matrix counted as the last."""
    found = start(context=4096, max_seqs=1, extra={"n-gpu-layers": layers, "fit": "off"})
    first = max(33 - layers, 0)
    head = of(DENSE, part="head")
    on_card = of(DENSE, layers=range(first, 32)) + (head if layers else 0)
    assert size(found, "weights") == on_card
    rate = 2 * 8 * 128 * 2
    assert size(found, "kv_cache") == 4096 * rate * max(32 - first, 0)
    host = of(DENSE, layers=range(min(first, 32))) + of(DENSE, part="embedding") + (0 if layers else head)
    assert float(found.host_bytes) == pytest.approx(host + 4096 * rate * min(first, 32))
    assert (size(found, "logits") > 0) is (layers > 0)


def test_a_cache_that_stays_on_the_host() -> None:
    found = start(context=4096, max_seqs=1, extra={**FIXED, "kv-offload": False})
    assert size(found, "kv_cache") == 0
    assert float(found.host_bytes) == of(DENSE, part="embedding") + 4096 * 32 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(("extra", "kept"), [
    ({"cpu-moe": True}, range(48)), ({"n-cpu-moe": 5}, range(5)), ({"n-cpu-moe": 0}, range(0)),
    ({"override-tensor": r"blk\.[0-9]\.ffn_.*_exps=CPU"}, range(10)),
    ({"override-tensor": [r"blk\.0\.ffn_.*_exps=CPU", r"blk\.1\.ffn_.*_exps=CUDA_Host"]}, range(2)),
    ({"override-tensor": r"ffn_.*_exps=CUDA0"}, range(0)),
])  # fmt: skip
def test_experts_that_stay_on_the_host(extra: dict[str, Any], kept: range) -> None:
    found, every = (start(MIXTURE, "h200-sxm", context=4096, extra={**FIXED, **more}) for more in (extra, {}))
    away = of(MIXTURE, roles=("experts",), layers=kept)
    assert size(every, "weights") - size(found, "weights") == pytest.approx(away)
    assert float(found.host_bytes) - float(every.host_bytes) == pytest.approx(away)


def test_blocks_of_a_dense_model_that_stay() -> None:
    found = start(context=4096, extra={**FIXED, "n-cpu-ffn": 3})
    every = start(context=4096, extra=FIXED)
    assert size(every, "weights") - size(found, "weights") == of(DENSE, roles=("ffn",), layers=range(3))


@pytest.mark.parametrize(("pattern", "says"), [
    ("exps", "is not PATTERN=BUFFER"), ("(a)+=CPU", "too involved"), ("a" * 301 + "=CPU", "too involved"),
    ("a{2}=CPU", "too involved"), ("[=CPU", "is no pattern"),
])  # fmt: skip
def test_patterns_that_are_not_followed(pattern: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        start(context=512, extra={**FIXED, "override-tensor": pattern})


def part(model: str = DENSE, layers: int = 33, **extra: Any) -> Any:
    return host_part(load_model(model), ServeOptions(extra=extra), layers=layers, micro_batch=512, offload_rows=32)


def test_what_a_pass_needs_of_the_host() -> None:
    assert part() is None
    half = part(layers=20)
    matrices = {t.name for t in load_model(DENSE).tensors if t.part == "layers" and t.layer is not None and t.layer < 13
                and len(t.shape) > 1}  # fmt: skip
    assert (half.tensors, half.layers) == (frozenset(matrices), frozenset(range(13)))
    assert (half.micro_batch, half.offload_rows, half.locked, half.read_by_card) == (512, 32, False, False)
    assert part(layers=20, **{"op-offload": False}).offload_rows == float("inf")
    assert part(layers=20, **{"op-offload": True}).offload_rows == 32
    none = part(layers=0)
    assert {t.name for t in load_model(DENSE).of_part("head") if len(t.shape) > 1} <= none.tensors
    assert not {t.name for t in load_model(DENSE).of_part("embedding")} & none.tensors
    tied = part("llama-3.2-1b", layers=0)
    assert {t.name for t in load_model("llama-3.2-1b").of_part("embedding")} <= tied.tensors
    caches = part(**{"kv-offload": False})
    assert (caches.tensors, caches.layers) == (frozenset(), frozenset(range(32)))


@pytest.mark.parametrize(("extra", "locked"), [
    ({}, False), ({"no-mmap": True}, True), ({"no-mmap": False}, False), ({"load-mode": "none"}, True),
    ({"load-mode": "mlock"}, True), ({"load-mode": "dio"}, True), ({"load-mode": "mmap"}, False),
])  # fmt: skip
def test_memory_that_the_card_copies_from(extra: dict[str, Any], locked: bool) -> None:
    assert part(layers=20, **extra).locked is locked


@pytest.mark.parametrize(("given", "free", "ends"), [
    (None, (1.0, 1.0, 1.0), [1 / 3, 2 / 3, 1.0]), (None, (3.0, 1.0), [0.75, 1.0]), (None, (3.0, -1.0), [1.0, 1.0]),
    ("3,1", (1.0, 1.0), [0.75, 1.0]), ("3/1", (1.0, 1.0), [0.75, 1.0]), ("1", (1.0, 1.0), [1.0, 1.0]),
    ("1,1,2", (1.0, 1.0), [0.5, 1.0]), ("0,1", (1.0, 1.0), [0.0, 1.0]),
])  # fmt: skip
def test_shares_of_cards(given: str | None, free: tuple[float, ...], ends: list[float]) -> None:
    extra = {} if given is None else {"tensor-split": given}
    assert splits(ServeOptions(extra=extra), free) == pytest.approx(ends)


@pytest.mark.parametrize(("given", "says"), [
    ("a,b", "is not a list of numbers"), ("0,0", "gives no card a share"), ("1,-1", "gives no card a share"),
    ("inf,1", "gives no card a share"), (",", "gives no card a share"),
])  # fmt: skip
def test_shares_that_are_none(given: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        splits(ServeOptions(extra={"tensor-split": given}), (1.0, 1.0))


@pytest.mark.parametrize(
    ("on_cards", "ends"),
    [(33, [0.5, 1.0]), (20, [0.25, 0.5, 1.0]), (1, [0.5, 1.0]), (33, [1.0, 1.0]), (40, [0.3, 1.0])],
)
def test_every_layer_is_on_one_card(on_cards: int, ends: list[float]) -> None:
    """Layer k of those on cards is on the first card whose share ends above k / count (llama_model::load_tensors)."""
    held = [layers_of_card(32, on_cards, ends, card) for card in range(len(ends))]
    count, first = min(on_cards, 33), max(33 - on_cards, 0)
    home = [next(card for card, end in enumerate(ends) if k / count < end) for k in range(count)]
    for card, (begin, stop, head) in enumerate(held):
        mine = [first + k for k in range(count) if home[k] == card]
        assert list(range(begin, stop)) == [one for one in mine if one < 32]
        assert head == (32 in mine)


def test_parts_of_two_kinds_of_cards() -> None:
    model = load_model(DENSE)
    first, second = parts_of_cards(model, ServeOptions(), layers=33, ends=[0.5, 1.0])
    assert first[1] == frozenset(range(17)) and second[1] == frozenset(range(17, 32))  # noqa: PT018
    head = {t.name for t in model.of_part("head") if len(t.shape) > 1}
    assert head <= second[0] and not head & first[0]  # noqa: PT018
    matrices = {t.name for t in model.tensors if t.part == "layers" and t.layer is not None and len(t.shape) > 1}
    assert first[0] | second[0] == matrices | head
    assert not first[0] & second[0]
    off = parts_of_cards(model, ServeOptions(extra={"kv-offload": False}), layers=33, ends=[0.5, 1.0])
    assert [one[1] for one in off] == [frozenset(), frozenset()]
    kept = parts_of_cards(model, ServeOptions(extra={"n-cpu-ffn": 1}), layers=33, ends=[0.5, 1.0])
    gone = {t.name for t in model.tensors if t.layer == 0 and t.role.startswith("ffn.")}
    assert first[0] - kept[0][0] == gone


def chosen(**more: Any) -> Choices:
    plain: dict[str, Any] = {
        "context": 4096, "cells": 4096, "slots": 1, "shared": True, "layers": 33, "micro_batch": 512,
        "keys": catalogue.get("fp16"), "values": catalogue.get("fp16"), "flash": True,
    }  # fmt: skip
    return Choices(**{**plain, **more})


@pytest.mark.parametrize(("choices", "cards", "overridden", "mask", "copies", "scores"), [
    (chosen(), 1, False, 512 * 4096 * 2, 1, 0),
    (chosen(flash=False), 1, False, 512 * 4096 * 4, 1, 512 * 4096 * 32 * 4),
    (chosen(), 2, False, 512 * 4096 * 2, 4, 0),
    (chosen(), 2, True, 512 * 4096 * 2, 1, 0),
    (chosen(layers=32), 2, False, 512 * 4096 * 2, 1, 0),
    (chosen(cells=4 * 4096, slots=4, shared=False), 1, False, 512 * 4096 * 2, 1, 0),
    (chosen(cells=4 * 4096, slots=4, shared=True), 1, False, 512 * 4 * 4096 * 2, 1, 0),
    (chosen(micro_batch=64), 1, False, 64 * 4096 * 2, 1, 0),
])  # fmt: skip
def test_the_compute_buffer(
    choices: Choices, cards: int, overridden: bool, mask: int, copies: int, scores: int
) -> None:
    """A mask of a cell and row, hidden rows and the widest columns in 32 bits; scores where attention is not fused."""
    rows = choices.micro_batch
    expected = mask * copies + rows * 4096 * 4 * copies + rows * 14336 * 4 + scores + 32 * MIB
    assert compute_bytes(load_model(DENSE), choices, FACTS, cards, overridden) == expected


def test_the_compute_buffer_of_experts_and_of_states() -> None:
    """The columns of all experts that a token wakes; no mask where nothing attends."""
    mixture = compute_bytes(load_model(MIXTURE), chosen(), FACTS, 1, False)
    assert mixture == 512 * 4096 * 2 + 512 * 2048 * 4 + 512 * max(8 * 768, 2048) * 4 + 32 * MIB


@pytest.mark.parametrize(("context", "slots", "shared", "cells"), [
    (1000, 1, True, 1024), (1000, 4, True, 1024), (1000, 4, False, 4096), (1024, 2, False, 2048), (1, 1, True, 256),
])  # fmt: skip
def test_cells_are_padded(context: int, slots: int, shared: bool, cells: int) -> None:
    assert cells_of(context, slots, shared, FACTS) == cells


def test_windows_keep_what_they_look_back_on() -> None:
    """Gemma 3 12B: 40 windows of 1,024 and 8 full layers; window and micro-batch, padded to 256, for each slot."""
    rate = 8 * 256 * 2 * 2
    plain = size(start("gemma-3-12b", "h200-sxm", context=8192, max_seqs=1, extra=FIXED), "kv_cache")
    assert plain == 8 * 8192 * rate + 40 * (1024 + 512) * rate
    shared = start("gemma-3-12b", "h200-sxm", context=8192, max_seqs=3, extra={**FIXED, "kv-unified": True})
    assert size(shared, "kv_cache") == 8 * 8192 * rate + 40 * (3 * 1024 + 512) * rate
    apart = start("gemma-3-12b", "h200-sxm", context=8192, max_seqs=3, extra={**FIXED, "kv-unified": False})
    assert size(apart, "kv_cache") == 3 * (8 * 8192 * rate + 40 * (1024 + 512) * rate)
    whole = start("gemma-3-12b", "h200-sxm", context=8192, max_seqs=1, extra={**FIXED, "swa-full": True})
    assert size(whole, "kv_cache") == 48 * 8192 * rate
    short = start("gemma-3-12b", "h200-sxm", context=512, max_seqs=1, extra=FIXED)
    assert size(short, "kv_cache") == 48 * 512 * rate
    old = start("gemma-3-12b", "h200-sxm", version="b5000", context=8192, max_seqs=1, extra=FIXED)
    assert size(old, "kv_cache") == 48 * 8192 * rate


@pytest.mark.parametrize(
    ("extra", "over"), [({}, 1024), ({"fit-target": "2048"}, 2048), ({"fit-target": "100,3000"}, 3000)]
)
def test_fit_leaves_a_margin_and_takes_the_longest_context(extra: dict[str, Any], over: int) -> None:
    found = start(free=20 * GIB, extra=extra)
    cells = int(found.pool.tokens)
    total = sum(float(one.bytes) for one in found.ledger)
    # A further 256 cells would not have left the margin; these did.
    assert total <= 20 * GIB - over * MIB
    rate = 32 * 2 * 8 * 128 * 2 + 512 * 2
    assert total + 256 * rate > 20 * GIB - over * MIB
    assert cells % 256 == 0
    assert "context-cut" in {one.code for one in found.warnings}


def test_fit_cuts_no_context_that_is_stated_and_none_below_its_least() -> None:
    assert "context-cut" not in {one.code for one in start(context=131072, extra={}).warnings}
    found = start("llama-3.1-70b", free=24 * GIB)
    assert int(found.context) == 4096
    found = start("llama-3.1-70b", free=24 * GIB, extra={"fit-ctx": 8192})
    assert int(found.context) == 8192
    assert "layers-on-host" in {one.code for one in found.warnings}
    off = start("llama-3.1-70b", free=24 * GIB, context=4096, extra={"fit": "off"})
    assert not {one.code for one in off.warnings} & {"layers-on-host", "context-cut"}
    with pytest.raises(InputError, match="--fit-target 'x' is not a number of MiB"):
        start(extra={"fit-target": "x"})


def test_fit_leaves_as_few_experts_behind_as_will_do() -> None:
    found = start(MIXTURE, "h200-sxm", free=40 * GIB, context=4096)
    note = next(one.message for one in found.warnings if one.code == "experts-on-host")
    number = int(note.split("experts of ")[1].split()[0])
    stack = of(MIXTURE, roles=("experts",), layers=range(1))
    total = sum(float(one.bytes) for one in found.ledger)
    assert total <= 40 * GIB - 1024 * MIB < total + stack
    assert 0 < number < 48
    assert f"{number} of 48 layers" in note


@pytest.mark.parametrize("layers", ["7", "33", "100", "-2", "all"])
def test_layers_that_are_asked_for(layers: str) -> None:
    wanted = 33 if layers in ("all", "-2") else min(int(layers), 33)
    found = start(context=512, extra={"n-gpu-layers": layers, "fit": "off"})
    direct = start(context=512, extra={"n-gpu-layers": wanted, "fit": "off"})
    assert size(found, "weights") == size(direct, "weights")


def test_layers_that_are_no_number() -> None:
    with pytest.raises(InputError, match="--n-gpu-layers 'x' is neither a number, auto nor all"):
        start(context=512, extra={"n-gpu-layers": "x"})


@pytest.mark.parametrize(("most", "first"), [(10, 0), (10, 4), (10, 10), (1, 1), (0, 0)])
def test_the_least_that_is_good(most: int, first: int) -> None:
    assert least(most, lambda number: number >= first) == first


def test_layer_bytes_by_part() -> None:
    model = load_model("llama-3.2-1b")
    tied = LayerBytes.of(model, ServeOptions())
    assert tied.head == tied.embedding + 2 * model.hidden
    assert tied.embedding == model.vocab * model.hidden * 2
    free = replace(model, tied_embeddings=False)
    assert LayerBytes.of(free, ServeOptions()).head == 2 * model.hidden
    assert (tied.vision, tied.draft) == (0, 0)
    assert float(tied.layers.sum()) == of("llama-3.2-1b", layers=range(16))
    assert LayerBytes.of(load_model("gemma-3-12b"), ServeOptions()).vision == of("gemma-3-12b", part="vision")


@pytest.mark.parametrize(("layout", "says"), [
    (Layout(dp=2), "--dp 2: llama.cpp runs one engine"), (Layout(cp=2), "llama.cpp runs one engine"),
    (Layout(tp=2, pp=2), "not both"), (Layout(ep=2), "nothing else"),
])  # fmt: skip
def test_layouts_that_it_does_not_run(layout: Layout, says: str) -> None:
    with pytest.raises(InputError, match=says):
        start(context=512, layout=layout)


@pytest.mark.parametrize(
    ("main", "cards", "good"), [(0, 1, True), (1, 1, False), (1, 2, True), (2, 2, False), (-1, 2, False)]
)
def test_main_cards_count_from_nothing(main: int, cards: int, good: bool) -> None:
    extra = {**FIXED, "main-gpu": main}
    if good:
        assert start(context=512, layout=Layout(pp=cards), extra=extra)
    else:
        with pytest.raises(
            InputError, match=rf"--main-gpu {main} is none of the {cards} card\(s\); count from 0 to {cards - 1}"
        ):
            start(context=512, layout=Layout(pp=cards), extra=extra)
    assert start(context=512, layout=Layout(pp=cards), extra={**extra, "split-mode": "none"})
