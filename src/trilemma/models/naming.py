"""How one model is spelled by hubs, tables and people, folded into keys that can be compared.

``meta-llama/Llama-3.1-70B-Instruct``, ``Llama 3.1:70b``, ``LLAMA3.1_70B [SFT]`` and ``llama3_1-70b`` are one model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trilemma.models.quantized.schemes import Scheme, scheme_names

MAX_NAME = 300
#: Words that say how a checkpoint was tuned, packed or published, not what its architecture is.
_NOISE = frozenset(
    """
    instruct it chat hf base sft dpo preview finetuned edge trtllm meta lora qlora full tuned gguf unsloth ct qat mtp
    release model instruction pt bnb mlx community dynamic ud hydrated context abliterated awq3 compressed quantized
    instructions vllm ollama server v0.1 v1.0 modelopt autoround
    """.split()
)
_BRACKETS = re.compile(r"\[[^\]]*\]|\([^)]*\)")
_DECIMAL = re.compile(r"(?<=\d)[_p](?=\d(?![0-9a-z]))")
_WORDS = re.compile(r"[^a-z0-9.+]+")
_VERSION = re.compile(r"\bv(?=\d)|(?<=[a-z])v(?=\d)")
_DATE = re.compile(r"(?:20)?\d{4}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spelling:
    """A name taken apart: its words, those left without noise and scheme, and the scheme that it states."""

    words: tuple[str, ...]
    bare: tuple[str, ...]
    scheme: Scheme | None
    scheme_words: str = ""

    @property
    def key(self) -> str:
        """All words, squeezed."""
        return squeeze(self.words)

    @property
    def bare_key(self) -> str:
        """The words without scheme and noise, squeezed."""
        return squeeze(self.bare)


def squeeze(words: tuple[str, ...]) -> str:
    """Words joined without separators, a ``v`` in front of a version number dropped."""
    return _VERSION.sub("", "".join(words))


def split_words(name: str) -> tuple[str, ...]:
    """Lower-case words of a name without organisation and bracketed remarks; ``3_1`` is read as 3.1."""
    text = _BRACKETS.sub(" ", name[:MAX_NAME].strip().lower())
    text = text.rsplit("/", 1)[-1]
    text = _DECIMAL.sub(".", text)
    return tuple(word for word in (part.strip(".") for part in _WORDS.split(text)) if word)


def spell(name: str) -> Spelling:
    """Take ``name`` apart. The longest words that name a scheme win; dates such as 2507 stay part of the model."""
    words = split_words(name)
    scheme: Scheme | None = None
    said = ""
    bare: list[str] = []
    known = scheme_names()
    position = 0
    while position < len(words):
        length, found = _scheme_at(words, position, known)
        if found is not None and position > 0:
            if scheme is None or _rank(found) < _rank(scheme):
                scheme, said = found, "-".join(words[position : position + length])
            position += length
            continue
        if words[position] not in _NOISE or position == 0:
            bare.append(words[position])
        position += 1
    return Spelling(words=words, bare=tuple(bare), scheme=scheme, scheme_words=said)


def without_dates(words: tuple[str, ...]) -> tuple[str, ...]:
    """``words`` without release dates such as 0528, 2507 or 20250131."""
    return tuple(word for word in words if not _DATE.fullmatch(word))


def _scheme_at(words: tuple[str, ...], position: int, known: object) -> tuple[int, Scheme | None]:
    assert isinstance(known, dict)
    for length in range(min(4, len(words) - position), 0, -1):
        run = words[position : position + length]
        for joint in ("-", "_", "."):
            found = known.get(joint.join(run))
            if found is not None and found.quantises:
                return length, found
    return 0, None


def _rank(scheme: Scheme) -> int:
    """Order of preference where a name states two: as in the data file."""
    return list(dict.fromkeys(id(value) for value in scheme_names().values())).index(id(scheme))
