"""What published performance recipes set and the rows measured with them leave out: data/validation/published_recipes.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.measured.tables import Row

_LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "micro_batch")
#: Flags of a recipe that are switches of a plan.
_SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "graphs:parts": {"cuda_graphs": True},
    "graphs:whole": {"cuda_graphs": True, "step_graph": True},
    "alltoall": {"dispatcher": "alltoall"},
    "padded": {"dispatcher": "padded"},
    "deepep": {"dispatcher": "deepep"},
    "hybridep": {"dispatcher": "hybridep"},
    "overlap": {"overlap_expert": True},
    "fused": {"fused_experts": True},
    "attention:fp8": {"attention_fp8": True},
}
#: Words of a row's notes that name a flag; the later one counts.
_WORDS = (
    ("all-to-all dispatcher", "alltoall"),
    ("capacity-factor", "padded"),
    ("deepep", "deepep"),
    ("hybridep", "hybridep"),
    ("cuda graph", "graphs:parts"),
    ("full-iteration cuda graph", "graphs:whole"),
    ("1f1b overlap", "overlap"),
    ("expert-parallel communication overlap", "overlap"),
)
_WITHOUT_GRAPHS = re.compile(r"(?:no|without) cuda graphs|cuda graphs[^.;]{0,40}disabled")


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRecipe:
    """``switches`` are fields of the plan; ``cells`` what the row leaves out, by column."""

    switches: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, str] = field(default_factory=dict)

    def filled(self, row: Row, assumed: list[str]) -> Row:
        """``row`` with the cells of the recipe where its own are empty; what was filled in is appended to ``assumed``."""
        cells = {column: value for column, value in self.cells.items() if not row.text(column)}
        assumed += [f"{column} {value}: as the published recipe sets it" for column, value in cells.items()]
        return replace(row, cells={**row.cells, **cells}) if cells else row


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """One recipe. ``found_in``: the start of the source_ref of rows that it holds for ("": those of Megatron-Bridge)."""

    found_in: str
    release: tuple[int, ...]
    model: str
    task: str
    cards: tuple[str, ...]
    formats: tuple[str, ...]
    layout: tuple[int, ...]
    flags: tuple[str, ...]


def published_recipe(row: Row) -> PublishedRecipe:
    """The recipe that ``row`` was run with, by release, model, task, card, format and the nearest layout; what its notes say
    counts before it. Recompute, chunks and sharding hold for the very degrees of parallelism alone."""
    lines = _lines_for(row)
    if not lines:
        return PublishedRecipe(switches=_stated(row))
    stated = {column: row.whole(column, low=1, high=2**24) for column in _LAYOUT}

    def alike(line: _Line) -> int:
        return sum(stated[column] == value for column, value in zip(_LAYOUT, line.layout, strict=True))

    best = max(lines, key=alike)
    same = all((stated[column] or 1) == best.layout[_LAYOUT.index(column)] for column in ("tp", "pp", "ep"))
    switches = {**_switches(best.flags), **_stated(row)}
    return PublishedRecipe(switches=switches, cells=_cells(best) if same else {})


def _switches(flags: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for flag in flags for name, value in _SWITCHES.get(flag, {}).items()}


def _stated(row: Row) -> dict[str, Any]:
    """Switches that the row's own notes name, or the script that its source_ref names (data/validation/submissions.toml)."""
    notes, source = row.text("notes").lower(), row.text("source_ref")
    scripts = read_data("validation/submissions.toml")["script"]
    flags = [flag for script in scripts if all(word in source for word in script["words"]) for flag in script["flags"]]
    flags += [flag for word, flag in _WORDS if word in notes]
    without = {"cuda_graphs": False, "step_graph": False} if _WITHOUT_GRAPHS.search(notes) else {}
    return {**_switches(tuple(flags)), **without}


def _cells(line: _Line) -> dict[str, str]:
    cells = {"vpp": str(line.layout[2])} if line.layout[2] > 1 else {}
    told = dict(flag.split(":") for flag in line.flags if ":" in flag)
    if "full" in told:
        cells["recompute"] = f"full ({told['full']} layers)"
    else:
        cells["recompute"] = f"selective ({told['recompute'].replace('+', ', ')})" if "recompute" in told else "none"
    if "fsdp" in line.flags:
        cells["fsdp_or_zero"] = "FSDP"
    return cells


def _lines_for(row: Row) -> list[_Line]:
    """The recipes of the newest release, up to that of ``row``, that has any for its model, task, card and format."""
    source, bridge = row.text("source_ref"), "bridge" in row.text("framework").lower()
    release, task = _release(row), _task(row.text("model"))
    model, card, fmt = _squeezed(row.text("model")), row.text("gpu").upper(), _format(row.text("precision").lower())
    found = [
        line
        for line in _recipes()
        if (source.startswith(line.found_in) if line.found_in else bridge and line.release <= release)
        and line.task == task and fmt in line.formats and line.model in model
        and any(card.startswith(one) for one in line.cards)
    ]  # fmt: skip
    newest = max((line.release for line in found), default=())
    return [line for line in found if line.release == newest]


def _release(row: Row) -> tuple[int, ...]:
    """The release that a row's version names, else the month in which its notes say that it was verified; () for neither."""
    found = re.search(r"\b(\d\d)\.(\d\d)(?:\.(\d\d))?", row.text("version"))
    found = found or re.search(r"verified 20(\d\d)-(\d\d)", row.text("notes"))
    return tuple(int(part) for part in found.groups() if part) if found else ()


def _task(model: str) -> str:
    lowered = model.lower()
    return "lora" if "lora" in lowered or "peft" in lowered else "sft" if "sft" in lowered else "pretrain"


def _format(precision: str) -> str:
    words = (("nvfp4", "nvfp4"), ("mx", "mxfp8"), ("block", "fp8_block"), ("fp8", "fp8"), ("bf16", "bf16"))
    return next((name for word, name in words if word in precision), "")


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


@cache
def _recipes() -> tuple[_Line, ...]:
    return tuple(
        _line(text, collection.get("found_in", ""))
        for collection in read_data("validation/published_recipes.toml")["collection"]
        for text in collection["recipes"]
    )


def _line(text: str, found_in: str) -> _Line:
    release, model, task, cards, formats, layout, *flags = text.split()
    return _Line(
        found_in=found_in, release=tuple(int(part) for part in release.split(".")), model=_squeezed(model), task=task,
        cards=tuple(cards.upper().split("+")), formats=tuple(formats.split("+")),
        layout=tuple(int(part) for part in layout.split("/")), flags=tuple(flags),
    )  # fmt: skip
