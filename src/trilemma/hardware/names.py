"""How people and programs call accelerators, and when two spellings mean the same one."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

#: Brand words: they must agree with the vendor and say nothing else.
_BRANDS = {
    "nvidia": "nvidia", "geforce": "nvidia", "tesla": "nvidia", "rtx": "nvidia",
    "amd": "amd", "instinct": "amd", "radeon": "amd",
    "intel": "intel", "arc": "intel", "apple": "apple", "google": "google", "aws": "aws", "amazon": "aws",
}  # fmt: skip
#: Words that name no particular part.
_NOISE = {
    "gpu", "gpus", "card", "accelerator", "tensor", "core", "cores", "edition", "generation", "gen", "graphics", "memory",
    "founders", "fe", "tm", "r", "with", "the", "of", "vram", "mac", "macbook", "studio", "mini", "assumed", "nvgpu",
}  # fmt: skip
_MEMORY_KINDS = re.compile(r"(hbm\d?e?|gddr\d?x?|lpddr\d?x?)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([gt])b/s")
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)\s*(?:gib|gb|g)(?![a-z0-9/])")
_POWER = re.compile(r"(?<![a-z0-9.])(\d+)\s*w(?![a-z0-9])")
_CORES = re.compile(r"(?<![a-z0-9.])(\d+)[\s-]*(?:gpu[\s-]*cores?|core[\s-]*gpu)(?![a-z0-9])")
_CPU_CORES = re.compile(r"(?<![a-z0-9.])(\d+)[\s-]*cores?(?![a-z0-9])")
_BREAKS = re.compile(r"[^a-z0-9.+]+")
_GLUED = re.compile(r"(?<![a-z0-9])(rtx|gtx|rx)(\d)")


@dataclass(frozen=True, kw_only=True, slots=True)
class CardSpelling:
    """A name taken apart: the words that name a part, and what else it says about it (None where it says nothing)."""

    text: str
    words: frozenset[str]
    vendor: str | None = None
    size_gb: float | None = None
    memory_kind: str | None = None
    watts: float | None = None
    gpu_cores: int | None = None
    bytes_per_s: float | None = None


def spell(name: str) -> CardSpelling:
    """``name`` taken apart. Any spelling is accepted: case, hyphens, underscores and brackets do not matter."""
    text = _lowered(name)
    rest = _GLUED.sub(r"\1 \2", text.replace("_", " "))
    rest, rate = _take(rest, _RATE)
    rest, cores = _take(rest, _CORES)
    rest, _ = _take(rest, _CPU_CORES)
    rest, size = _take(rest.replace("-", " "), _SIZE)
    rest, power = _take(rest, _POWER)
    words = [word for word in _BREAKS.split(rest) if word.strip(".")]
    kinds = [word for word in words if _MEMORY_KINDS.fullmatch(word)]
    vendors = [_BRANDS[word] for word in words if word in _BRANDS]
    return CardSpelling(
        text=plain(text),
        words=frozenset(word for word in words if word not in _BRANDS and word not in _NOISE and word not in kinds),
        vendor=vendors[0] if vendors else None,
        size_gb=float(size[0]) if size else None,
        memory_kind=kinds[0] if kinds else None,
        watts=float(power[0]) if power else None,
        gpu_cores=int(cores[0]) if cores else None,
        bytes_per_s=float(rate[0]) * (1e9 if rate[1] == "g" else 1e12) if rate else None,
    )


def plain(name: str) -> str:
    """``name`` in small letters with single blanks, for comparing names as a whole."""
    return " ".join(_BREAKS.split(_lowered(name))).strip()


def _lowered(name: str) -> str:
    text = name[:200]
    return (text if text.isascii() else unicodedata.normalize("NFKC", text).replace("‐", "-")).lower()


def _take(text: str, pattern: re.Pattern[str]) -> tuple[str, tuple[str, ...]]:
    """``text`` without the first match of ``pattern``, and the groups of that match."""
    match = pattern.search(text)
    if match is None:
        return text, ()
    return f"{text[: match.start()]} {text[match.end() :]}", match.groups()


def same_word(wanted: str, listed: str) -> bool:
    """Whether a word asked for is the word listed; the generation digit of a form factor may be left out."""
    if wanted == listed:
        return True
    if not (wanted.startswith("sxm") and listed.startswith("sxm")):
        return False
    return "sxm" in (wanted, listed) and wanted[3:].isdigit() != listed[3:].isdigit()


def unmatched_words(wanted: CardSpelling, listed: CardSpelling) -> int | None:
    """How many words of ``listed`` the name asked for leaves out; None where it holds a word that is not listed."""
    found = {word for word in listed.words if any(same_word(one, word) for one in wanted.words)}
    if any(all(not same_word(one, word) for word in listed.words) for one in wanted.words):
        return None
    return len(listed.words - found)
