"""The accelerators known: every data file by name, found by any spelling in use."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, PlanWarning, UnknownName, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.names import CardSpelling, plain, spell, unmatched_words
from trilemma.hardware.reader import read_accelerator, read_text
from trilemma.quantities import GIB

_FOLDER = Path(__file__).parent.parent / "data" / "accelerators"
#: The keys of an accelerator file that tell by which names it is found.
_NAMING = ("name", "vendor", "label_gb", "label_options_gb", "aliases", "device_names")
#: A label and the size in a spelling agree within this share: 180 and 192 GB are one B200, 80 and 94 GB two H100s.
_SIZE_TOLERANCE = 0.07
#: What a row's memory total may differ from the total expected of a part and still mean it.
_TOTAL_TOLERANCE = 0.02
#: Parts whose totals lie this close together are not told apart by a total.
_SAME_TOTAL = 0.002


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """What the head of a data file says: enough to find it by name without reading the rest.

    ``names`` (id, name, aliases) may be given in part; ``device_names`` hold them as a whole together with what drivers
    print: nvidia-smi's "NVIDIA H200" is the SXM part, while "h200" alone is not.
    """

    id: str
    path: Path
    vendor: str
    label_gb: float
    options_gb: tuple[float, ...]
    names: tuple[CardSpelling, ...]
    device_names: frozenset[str]


def all_accelerators() -> tuple[Accelerator, ...]:
    """Every accelerator of the catalogue, by vendor and name of its file."""
    return tuple(_load(entry.path) for entry in _entries())


def ids() -> tuple[str, ...]:
    """The id of every accelerator of the catalogue."""
    return tuple(entry.id for entry in _entries())


def find(name: str, *, memory_gib: float | None = None) -> Accelerator:
    """The accelerator that ``name`` means: an id, a part of one, a spelling of a table or of nvidia-smi, or a file.

    ``memory_gib`` is a memory total seen on the card; it decides between parts that differ in memory. Raises
    `UnknownName` for a name that fits none, `InputError` for one that fits several (with the candidates) or for a file
    that cannot be used.
    """
    if _is_path(name):
        return read_accelerator(Path(name))
    wanted, entries = spell(name), _matches(name)
    if len(entries) > 1 and memory_gib is not None:
        entries = _by_total(entries, memory_gib)
    if len(entries) > 1:
        candidates = ", ".join(sorted(entry.id for entry in entries)[:12])
        raise InputError(f"{shorten(name)!r} names several accelerators; give one of {candidates}")
    return _sized(entries[0], wanted, memory_gib)


def find_measured(name: str, total_gib: float | None = None) -> tuple[Accelerator, tuple[PlanWarning, ...]]:
    """The accelerator of a row of a measured table, with what had to be assumed.

    The row's memory total decides between parts; else the SXM part is taken, then the one with most memory, and the
    warning ``gpu-part-assumed`` says so. A host with its card in brackets (``PC (Nvidia RTX 4090)``) means the card, and
    a count before the name (``8x H100``) is not part of it.
    Raises as `find` does, and `InputError` for an empty name or one that lists several accelerators.
    """
    name = re.sub(r"^\s*\d+\s*[x×]\s+", "", name)
    if not name.strip():
        raise InputError("the row names no GPU")
    if re.search(r"\)\s*,|\s\+\s", name):
        raise InputError(f"{shorten(name)!r} names more than one kind of accelerator")
    if _is_path(name):
        return read_accelerator(Path(name)), ()
    wanted, entries = _measured_matches(name)
    warnings: list[PlanWarning] = []
    if len(entries) > 1 and total_gib is not None:
        entries = _by_total(entries, total_gib)
    if len(entries) > 1:
        chosen = _usual_part(wanted, entries)
        others = ", ".join(sorted(entry.id for entry in entries if entry is not chosen))
        text = f"{shorten(name)!r} does not say which part it is; {chosen.id} assumed (not {others})"
        warnings.append(PlanWarning(code="gpu-part-assumed", message=text))
        entries = [chosen]
    accelerator = _sized(entries[0], wanted, total_gib)
    if total_gib is not None and _total_distance(accelerator, total_gib) > _TOTAL_TOLERANCE:
        text = f"a memory total of {total_gib:g} GiB is not what {accelerator.id} has; the row's own total counts"
        warnings.append(PlanWarning(code="gpu-total-differs", message=text))
    return accelerator, tuple(warnings)


@cache
def _entries() -> tuple[_Entry, ...]:
    index = read_data("accelerators/index.json")
    return tuple(
        _entry(path, index.get(path.stem) or head_of(path))
        for path in (_FOLDER / name for name in sorted(os.listdir(_FOLDER)) if name.endswith(".toml"))
    )


def head_of(path: Path) -> dict[str, Any]:
    """What an accelerator file says before its first table of its names and size. ``index.json`` holds that of all files,
    since a name is looked for among all of them; ``scripts/index_accelerators.py`` makes it."""
    head = tomllib.loads(read_text(path).split("\n[", 1)[0])
    return {key: head[key] for key in _NAMING if key in head}


@cache
def _load(path: Path) -> Accelerator:
    return read_accelerator(path)


def _entry(path: Path, head: Mapping[str, Any]) -> _Entry:
    names = (path.stem, head["name"], *head.get("aliases", ()))
    return _Entry(
        id=path.stem,
        path=path,
        vendor=head["vendor"].lower(),
        label_gb=float(head["label_gb"]),
        options_gb=tuple(float(size) for size in head.get("label_options_gb", ())),
        names=tuple(spell(one) for one in names),
        device_names=frozenset(plain(one) for one in (*names, *head.get("device_names", ()))),
    )


def _is_path(name: str) -> bool:
    """Whether ``name`` is a file's: it ends in .toml or starts as a path does ("150 GB/s" holds a slash and does not)."""
    if "\0" in name:
        return False
    return name.endswith(".toml") or name.startswith((os.sep, f".{os.sep}", f"..{os.sep}", "~"))


def _matches(name: str) -> list[_Entry]:
    """The entries that ``name`` fits best, at least one. Raises `UnknownName`."""
    wanted = spell(name)
    whole = [entry for entry in _entries() if wanted.text in entry.device_names]
    if whole:
        return whole
    ranked = [(rank, entry) for entry in _entries() if (rank := _rank(wanted, entry)) is not None]
    if not ranked or not wanted.words:
        raise UnknownName("accelerator", name, _known_names(), hint="see trilemma hardware")
    best = min(rank for rank, _ in ranked)
    return [entry for rank, entry in ranked if rank == best]


def _rank(wanted: CardSpelling, entry: _Entry) -> tuple[bool, bool, bool] | None:
    """How far ``wanted`` is from naming ``entry`` in full: words left out, size off, size or power left out.

    None: another part.
    """
    if wanted.vendor not in (None, entry.vendor):
        return None
    ranks = []
    for listed in entry.names:
        left_out = unmatched_words(wanted, listed)
        if left_out is None:
            continue
        size_off = False
        if wanted.size_gb is not None:
            sizes = (entry.label_gb, *entry.options_gb, *([listed.size_gb] if listed.size_gb else ()))
            nearest = min(abs(wanted.size_gb / size - 1) for size in sizes)
            if nearest > _SIZE_TOLERANCE:
                continue
            size_off = nearest > 1e-9
        if wanted.memory_kind and wanted.memory_kind != _memory_kind(entry):
            continue
        unsaid = (
            (wanted.size_gb is None and listed.size_gb)
            or (wanted.watts is None and listed.watts)
            or (wanted.gpu_cores is None and listed.gpu_cores)
        )
        ranks.append((left_out > 0, size_off, bool(unsaid and not left_out)))
    return min(ranks) if ranks and _agrees(wanted, entry) else None


def _memory_kind(entry: _Entry) -> str:
    return _load(entry.path).memory_type.lower().split()[0] if _load(entry.path).memory_type else ""


def _agrees(wanted: CardSpelling, entry: _Entry) -> bool:
    """Whether power, core count and bandwidth in the name, where it states them, are those of the part."""
    if wanted.watts is None and wanted.gpu_cores is None and wanted.bytes_per_s is None:
        return True
    part = _load(entry.path)
    if wanted.watts is not None and (part.tdp_w is None or wanted.watts not in part.tdp_w.claims):
        return False
    if wanted.gpu_cores is not None and wanted.gpu_cores != part.gpu_cores:
        return False
    return wanted.bytes_per_s is None or any(
        abs(wanted.bytes_per_s / claim - 1) < 0.05 for claim in part.bandwidth_bytes_per_s.claims
    )


def _measured_matches(name: str) -> tuple[CardSpelling, list[_Entry]]:
    """As `_matches`; where the whole name fits nothing, what stands in brackets is tried: the card of a host."""
    try:
        return spell(name), _matches(name)
    except UnknownName as error:
        inside = re.sub(r"\(?\bexternal\b\)?", "", name.partition("(")[2], flags=re.IGNORECASE).strip(" ()")
        if not inside:
            raise
        try:
            return spell(inside), _matches(inside)
        except UnknownName:
            raise error from None


def _usual_part(wanted: CardSpelling, entries: list[_Entry]) -> _Entry:
    """Among parts of one name: what the name with "SXM" added means, then the server board with most memory."""
    with_form = replace(wanted, words=wanted.words | {"sxm"})
    ranked = [(rank, entry) for entry in entries if (rank := _rank(with_form, entry)) is not None]
    best = min((rank for rank, _ in ranked), default=None)
    boards = [entry for rank, entry in ranked if rank == best] or entries
    return max(boards, key=lambda entry: (entry.label_gb, entry.id))


def _by_total(entries: list[_Entry], total_gib: float) -> list[_Entry]:
    """The entries whose card comes nearest to a total of ``total_gib``; all of them where none is near."""
    away = {entry.id: _total_distance(_load(entry.path), total_gib) for entry in entries}
    nearest = min(away.values())
    if nearest > _TOTAL_TOLERANCE:
        return entries
    return [entry for entry in entries if away[entry.id] <= nearest + _SAME_TOTAL]


def _total_distance(part: Accelerator, total_gib: float) -> float:
    """Relative distance of a total from what the runtime or the driver may show for this part; 0 inside that range."""
    interval = part.runtime_total()
    low, high = interval.low, max((interval.high, *(part.nvml_total_bytes.claims if part.nvml_total_bytes else ())))
    total = total_gib * GIB
    return max(low / total - 1, total / high - 1, 0.0) if total > 0 else float("inf")


def _sized(entry: _Entry, wanted: CardSpelling, total_gib: float | None) -> Accelerator:
    """The part, with the memory that the name states where it is sold with several sizes of unified memory."""
    part = _load(entry.path)
    size = wanted.size_gb
    if size is None and total_gib is not None and entry.options_gb:
        size = min(entry.options_gb, key=lambda option: abs(option - total_gib))
    if size is None or size == part.label_gb or size not in entry.options_gb:
        return part
    return replace(part, label_gb=size, label_figure=None, nvml_total_bytes=None, runtime_total_bytes=None)


def _known_names() -> list[str]:
    """Ids and their shorter forms, so that a slip in a short name finds its neighbours."""
    short = [entry.id.partition("-")[2] for entry in _entries()]
    families = {re.sub(r"(-sxm)\d?-.*", r"\1", name) for name in short} - set(short)
    return [*short, *(name for name in sorted(families) if len(_matches(name)) == 1), *(name for name in ids())]
