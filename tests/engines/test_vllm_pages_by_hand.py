"""vLLM's blocks counted by hand: what a request takes of each kind of page, how kinds share a pool, which sizes are captured.

Rules: vllm/v1/kv_cache_interface.py (specs' max_memory_usage_bytes), v1/core/kv_cache_utils.py (groups), config/vllm.py
(_set_cudagraph_sizes), model_executor/models/config.py (blocks of hybrids).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trilemma.commands.command_line import read_settings
from trilemma.engines.vllm.capture_sizes import read_capture_sizes
from trilemma.engines.vllm.flags import table
from trilemma.engines.vllm.groups import CacheGroup, Grouping, group_pages
from trilemma.engines.vllm.pages import PageRules, Pages, layer_pages
from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.models.resolve import load_model


def pages(rule: Any, layers: range | tuple[int, ...], *, block: int = 16, size: float = 1024.0, **more: Any) -> Pages:
    return Pages(rule=rule, layers=tuple(layers), block=block, page_bytes=size, **more)


#: (kind, tokens, in flight, dcp, blocks)
NEEDED = [
    (pages("full", range(2)), 1, 100, 1, 1),
    (pages("full", range(2)), 16, 100, 1, 1),
    (pages("full", range(2)), 17, 100, 1, 2),
    (pages("full", range(2)), 64, 100, 2, 2),  # half of the tokens on each rank
    (pages("full", range(2)), 65, 100, 2, 3),
    # A window keeps span - 1 tokens and those in flight, one block more for where it starts.
    (pages("window", range(2), span=128), 10_000, 49, 1, 11 + 1),
    (pages("window", range(2), span=128), 10_000, 50, 1, 12 + 1),
    (pages("window", range(2), span=128), 100, 50, 1, 7 + 1),
    (pages("chunk", range(2), span=128), 10_000, 48, 1, 11),
    (pages("chunk", range(2), span=128), 10_000, 49, 1, 12),
    (pages("chunk", range(2), span=128), 100, 50, 1, 7),
    (pages("state", range(2)), 10_000, 50, 1, 1),
    (pages("state", range(2), held=3), 10_000, 50, 1, 3),
    (pages("state", range(2), held=2, everywhere=True), 33, 50, 1, 3 + 2),
]


@pytest.mark.parametrize(("kind", "tokens", "in_flight", "dcp", "blocks"), NEEDED)
def test_blocks_of_a_request(kind: Pages, tokens: int, in_flight: int, dcp: int, blocks: int) -> None:
    assert int(kind.needed(tokens=tokens, in_flight=in_flight, dcp=dcp)) == blocks
    several = kind.needed(tokens=np.array([tokens, tokens]), in_flight=in_flight, dcp=dcp)
    assert several.tolist() == [blocks, blocks]


def rules(**more: Any) -> PageRules:
    plain: dict[str, Any] = {
        "kv": catalogue.get("bf16"), "block": 16, "latent_block": 64, "compressed_block": 256, "windows_kept": True,
        "chunks_kept": True,
    }  # fmt: skip
    return PageRules(**{**plain, **more})


def kinds(name: str, *, tp: int = 1, **more: Any) -> list[tuple[str, int, int, float, int]]:
    """(rule, layers, block, bytes of a page, span) of each kind."""
    found = layer_pages(load_model(name).layers, tp=tp, rules=rules(**more))
    return [(one.rule, len(one.layers), int(one.block), float(one.page_bytes), one.span) for one in found]


def test_pages_of_published_models() -> None:
    # K and V of 8 heads of 128 in 16 bits: 4,096 bytes a token.
    assert kinds("llama-3.1-8b") == [("full", 32, 16, 16 * 4096, 0)]
    assert kinds("llama-3.1-8b", tp=4) == [("full", 32, 16, 16 * 1024, 0)]
    assert kinds("llama-3.1-8b", tp=16) == [("full", 32, 16, 16 * 512, 0)]  # a head is never split
    assert kinds("llama-3.1-8b", block=32, kv=catalogue.get("fp8_e4m3")) == [("full", 32, 32, 32 * 2048, 0)]
    # Gemma 3 12B: five windows of 1,024 to one full layer, 8 heads of 256: 8,192 bytes a token.
    windows, full = sorted(kinds("gemma-3-12b"), reverse=True)
    assert windows == ("window", 40, 16, 16 * 8192, 1024)
    assert full == ("full", 8, 16, 16 * 8192, 0)
    assert kinds("gemma-3-12b", windows_kept=False) == [("full", 48, 16, 16 * 8192, 0)]
    # DeepSeek-V2 Lite: latents of 512 and 64 rotated in blocks of their own.
    assert kinds("deepseek-v2-lite") == [("full", 27, 64, 64 * 576 * 2, 0)]
    # Llama 4 Scout: chunks of 8,192 in three of four layers.
    assert sorted(kinds("llama-4-scout")) == [("chunk", 36, 16, 16 * 4096, 8192), ("full", 12, 16, 16 * 4096, 0)]
    assert kinds("llama-4-scout", chunks_kept=False) == [("full", 48, 16, 16 * 4096, 0)]


@pytest.mark.parametrize(("mode", "draft", "held", "everywhere"), [
    ("none", 0, 1, False), ("align", 0, 2, False), ("all", 0, 0, True), ("none", 2, 3, False), ("all", 1, 1, True),
])  # fmt: skip
def test_states_that_a_request_holds(mode: Any, draft: int, held: int, everywhere: bool) -> None:
    layers = load_model("qwen3-next-80b-a3b").layers
    found = layer_pages(layers, tp=1, rules=rules(state_mode=mode, draft_tokens=draft))
    state = next(one for one in found if one.rule == "state")
    assert (len(state.layers), state.held, state.everywhere) == (36, held, everywhere)
    assert len(next(one for one in found if one.rule == "full").layers) == 12


def together(*found: Pages, ratio: float = 1.0, alignment: int = 16, least: int = 16, packed: bool = False) -> Grouping:
    grouping = group_pages(found, ratio=ratio, state_alignment=alignment, least_block=least, packed=packed)
    assert grouping is not None
    return grouping


def cost(grouping: Grouping, *, start: int = 0, stop: int | None = None, depth: int = 12) -> float:
    return float(grouping.block_bytes(start=start, stop=depth if stop is None else stop, depth=depth))


def test_layers_that_need_as_many_blocks_share_a_table() -> None:
    grouping = together(pages("full", range(4)), pages("full", range(4, 12), size=512.0))
    assert grouping.summed
    assert cost(grouping) == 4 * 1024 + 8 * 512
    assert cost(grouping, start=2, stop=6) == 2 * 1024 + 2 * 512
    assert int(grouping.needed(tokens=33, in_flight=8, dcp=1)) == 3
    assert int(grouping.token_block) == 16


@pytest.mark.parametrize("other", [
    pages("full", range(4, 12), block=32),
    pages("window", range(4, 12), span=64),
    pages("state", range(4, 12)),
])  # fmt: skip
def test_layers_that_need_other_numbers_of_blocks_do_not(other: Pages) -> None:
    assert not together(pages("full", range(4)), other).summed


def test_windows_of_two_lengths_do_not_share_a_table() -> None:
    assert together(pages("window", range(4), span=64), pages("window", range(4, 8), span=64)).summed
    assert not together(pages("window", range(4), span=64), pages("window", range(4, 8), span=65)).summed


def test_states_share_a_table_where_they_hold_as_many() -> None:
    first = pages("state", range(4), block=0, held=2)
    assert together(first, pages("state", range(4, 8), block=0, held=2, size=512.0)).summed
    assert not together(first, pages("state", range(4, 8), block=0, held=1)).summed


def test_groups_are_as_large_as_the_smallest_kind() -> None:
    """Ten windows beside two full layers are five groups of two (gpt-oss and Gemma 3 in small)."""
    full, windows = pages("full", (5, 11)), pages("window", (0, 1, 2, 3, 4, 6, 7, 8, 9, 10), span=64)
    grouping = together(full, windows)
    assert [len(group.layers) for group in grouping.groups] == [2, 2, 2, 2, 2, 2]
    assert grouping.groups[1].layers == (0, 6)  # every fifth
    assert cost(grouping) == 2 * 1024
    # One full table and five of windows: ceil(1000 / 16) and ceil((63 + 8) / 16) + 1 blocks each.
    assert int(grouping.needed(tokens=1000, in_flight=8, dcp=1)) == 63 + 5 * (5 + 1)


@pytest.mark.parametrize(("ratio", "sizes"), [(1.5, [4, 3]), (1.34, [4, 3]), (1.33, [3, 2, 2]), (1.0, [3, 2, 2])])
def test_kinds_of_nearly_as_many_layers_are_padded(ratio: float, sizes: list[int]) -> None:
    grouping = together(pages("full", range(3)), pages("window", range(3, 7), span=64), ratio=ratio)
    assert sorted((len(group.layers) for group in grouping.groups), reverse=True) == sizes


def test_pages_of_two_sizes_grow_by_whole_factors() -> None:
    grouping = together(pages("full", range(2), size=1000.0), pages("window", range(2, 4), span=64, size=300.0))
    narrow = next(group.pages for group in grouping.groups if group.pages.rule == "window")
    assert (int(narrow.block), float(narrow.page_bytes)) == (3 * 16, 1000.0)
    wide = next(group.pages for group in grouping.groups if group.pages.rule == "full")
    assert (int(wide.block), float(wide.page_bytes)) == (16, 1000.0)
    assert int(grouping.token_block) == 16


@pytest.mark.parametrize(("state", "alignment", "least", "block"), [
    (64 * 100.0, 16, 16, 112),  # 6,400 bytes at 64 a token are 100 tokens, in steps of 16
    (64 * 112.0, 16, 16, 112),
    (64 * 112.0 + 1, 16, 16, 128),
    (64 * 100.0, 1, 16, 100),
    (64 * 10.0, 16, 48, 48),  # never below the least block
])  # fmt: skip
def test_blocks_of_hybrids_are_raised_until_a_page_holds_a_state(
    state: float, alignment: int, least: int, block: int
) -> None:
    grouping = together(
        pages("full", range(2)), pages("state", range(2, 8), block=0, size=state), alignment=alignment, least=least
    )
    for group in grouping.groups:
        assert int(group.pages.block) == block
        assert float(group.pages.page_bytes) == block * 64


def test_the_widest_attention_and_the_largest_state_decide() -> None:
    grouping = together(
        pages("full", range(2)), pages("full", range(2, 4), block=32, size=4096.0),
        pages("state", range(4, 8), block=0, size=900.0),
        pages("state", range(8, 12), block=0, held=2, size=6400.0),
    )  # fmt: skip
    # The widest page has 4,096 bytes for 32 tokens: 128 a token; 6,400 bytes are 50 tokens, 64 in steps of 16.
    assert {float(group.pages.page_bytes) for group in grouping.groups if group.pages.rule == "state"} == {64 * 128.0}


def test_states_alone_have_blocks_of_one() -> None:
    grouping = together(pages("state", range(4), block=0, size=777.0))
    assert int(grouping.groups[0].pages.block) == 1
    assert cost(grouping, depth=4) == 4 * 777
    assert int(grouping.token_block) == 1
    assert int(grouping.needed(tokens=1000, in_flight=8, dcp=1)) == 1


def parted(rule: Any, layers: range, *parts: float, span: int = 0) -> Pages:
    return pages(rule, layers, size=sum(parts), parts=parts, span=span)


def test_compressed_layers_lie_over_each_other() -> None:
    """Four full layers of two caches, eight windows: groups of four; packed the largest group, else tuples of both sizes."""
    full, windows = parted("full", range(4), 1000.0, 200.0), parted("window", range(12), 300.0, span=128)
    packed, loose = together(full, windows, packed=True), together(full, windows, packed=False)
    assert [len(group.layers) for group in packed.groups] == [4, 4, 4, 4]
    assert cost(packed) == max(4 * 1200, 4 * 300)
    assert cost(loose) == 4 * (1000 + 200)
    assert cost(packed, start=0, stop=6) == 4 * 1200 / 2
    wide = together(parted("full", range(2), 10.0), parted("window", range(12), 300.0, span=128), packed=True)
    # Twelve windows on groups of two to twelve: twelve leaves no padding but for the full group's ten; so does no other less.
    assert cost(wide) == max(2 * 10.0, max(len(g.layers) for g in wide.groups if g.pages.rule == "window") * 300.0)
    assert cost(packed, start=3, stop=3) == 1.0  # no layer, and no division by nothing


def test_a_stage_without_layers_costs_a_byte() -> None:
    grouping = Grouping(groups=(CacheGroup(pages=pages("full", range(4)), layers=(0, 1, 2, 3)),), summed=True)
    assert cost(grouping, start=4, stop=8) == 1.0
    assert cost(grouping, start=3, stop=8) == 1024.0


def sizes_of(words: str) -> tuple[tuple[int, ...] | None, dict[str, Any]]:
    extra: dict[str, Any] = {}
    return read_capture_sizes(read_settings(words.split(), table()), extra), extra


@pytest.mark.parametrize(("words", "sizes", "rest"), [
    ("", None, {}),
    ("--cudagraph-capture-sizes 1 2 16", (1, 2, 16), {}),
    ("--max-cudagraph-capture-size 16", (1, 2, 4, 8, 16), {}),
    ("--max-cudagraph-capture-size 7", (1, 2, 4), {}),
    ("--max-cudagraph-capture-size 272", (1, 2, 4, *range(8, 256, 8), 256, 272), {}),
    ("--max-cudagraph-capture-size 0", (), {}),
    ('--compilation-config {"cudagraph_capture_sizes":[1,4]}', (1, 4), {}),
    ('--compilation-config {"max_cudagraph_capture_size":4}', (1, 2, 4), {}),
    ('--compilation-config {"cudagraph_capture_sizes":[1,4],"level":2} --cudagraph-capture-sizes 2', (2,),
     {"compilation-config": {"level": 2}}),
    ('--compilation-config {"max_cudagraph_capture_size":4} --max-cudagraph-capture-size 2', (1, 2), {}),
    ('--compilation-config {"cudagraph_mode":"NONE"}', (), {}),
    ('--compilation-config {"cudagraph_mode":"none","level":3}', (), {"compilation-config": {"level": 3}}),
    ('--compilation-config {"cudagraph_mode":0}', (), {}),
    ('--compilation-config {"cudagraph_mode":"FULL"}', None, {"compilation-config": {"cudagraph_mode": "FULL"}}),
    ("--compilation-config 3", None, {"compilation-config": {"level": 3}}),
    ("--cuda-graph-sizes 32", (1, 2, 4, 8, 16, 24, 32), {}),
    ("--cuda-graph-sizes 8 2 4", (2, 4, 8), {}),
])  # fmt: skip
def test_sizes_that_are_captured(words: str, sizes: tuple[int, ...] | None, rest: dict[str, Any]) -> None:
    assert sizes_of(words) == (sizes, rest)


@pytest.mark.parametrize(("words", "says"), [
    ('--compilation-config {"cudagraph_capture_sizes":[0]}', "are not whole numbers of at least 1"),
    ('--compilation-config {"cudagraph_capture_sizes":[true]}', "are not whole numbers"),
    ('--compilation-config {"cudagraph_capture_sizes":[1.5]}', "are not whole numbers"),
    ('--compilation-config {"cudagraph_capture_sizes":[16777217]}', "are not whole numbers"),
    ('--compilation-config {"cudagraph_capture_sizes":4}', "are not whole numbers"),
    ('--compilation-config {"max_cudagraph_capture_size":"x"}', "largest CUDA graph size 'x'"),
    ('--compilation-config {"max_cudagraph_capture_size":131073}', "largest CUDA graph size"),
    ('--compilation-config {"max_cudagraph_capture_size":true}', "largest CUDA graph size"),
    ("--compilation-config 4", "neither a level from 0 to 3"),
    ("--compilation-config -1", "neither a level from 0 to 3"),
])  # fmt: skip
def test_sizes_that_are_none(words: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        sizes_of(words)


def test_the_largest_sizes_that_are_read() -> None:
    assert sizes_of('--compilation-config {"cudagraph_capture_sizes":[16777216]}')[0] == (16777216,)
    # 1, 2, 4, 31 steps of eight below 256, and steps of sixteen: 8,192 sizes at most.
    most = 256 + 16 * (8192 - 3 - 31 - 1)
    assert len(sizes_of(f"--max-cudagraph-capture-size {most}")[0] or ()) == 8192
    with pytest.raises(InputError, match="CUDA graph sizes"):
        sizes_of(f"--max-cudagraph-capture-size {most + 16}")
