"""How one model is spelled by hubs, tables and people, folded into keys that can be compared.

``meta-llama/Llama-3.1-70B-Instruct``, ``Llama 3.1:70b``, ``LLAMA3.1_70B [SFT]`` and ``llama3_1-70b`` are one model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from trilemma.models.quantized.schemes import Scheme, scheme_in
from trilemma.models.quantized.words import prefix_of, unstated_methods

MAX_NAME = 300
#: Words that say how a checkpoint was tuned, packed or published, not what its architecture is.
_NOISE = frozenset(
    """
    instruct it chat hf base sft dpo preview finetuned edge trtllm meta lora qlora full tuned unsloth ct qat mtp release
    model instruction instructions pt mlx community dynamic ud abliterated compressed quantized vllm ollama v0.1 v1.0
    modelopt dyn latest interactive dwq
    """.split()  # noqa: SIM905 - a list of words reads better as text
)
_URL = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co|(?:www\.)?modelscope\.cn/models)/([\w.-]{1,96}/[\w.-]{1,96})(:[\w.-]{1,64})?"
    r"(?:/(?:tree|blob|resolve|files|summary)(?:/.{0,300})?)?/?(?:\?.{0,200})?",
    re.ASCII | re.IGNORECASE,
)
_BRACKETS = re.compile(r"\[[^\]]*\]|\([^)]*\)")
_CUT = re.compile(r"\bcut to (\d{1,4}) layers\b")
_DECIMAL = re.compile(r"(?<=\d)_(?=\d(?![0-9a-z]))")
_WORDS = re.compile(r"[^a-z0-9.+]+")
_VERSION = re.compile(r"(?:(?<=[a-z])|^)v(?=\d)")
_BITS_A_WEIGHT = re.compile(r"(?<![\d.])(\d{1,2}(?:\.\d{1,3})?)[-_ ]?bpw(?![a-z])", re.IGNORECASE)
#: Bits and head bits that follow the method in names of ExLlama's repositories.
_OF_EXL = re.compile(r"\d{1,2}(?:\.\d{1,3})?(?:bpw)?|h\d{1,2}|bpw")
_DATE = re.compile(r"(?:20)?\d{4}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpelling:
    """A name taken apart: its words, those left without noise and scheme, and the quantisation that it states.

    ``unstated`` is a method that the name gives without saying how many bits (``GGUF``, ``EXL3``). ``before`` are the bare
    words in front of the first word of quantisation: what follows it may be the label of a variant.
    """

    words: tuple[str, ...]
    bare: tuple[str, ...]
    scheme: Scheme | None = None
    unstated: str | None = None
    before: tuple[str, ...] = ()


def without_url(name: str) -> str:
    """The id that the address of a model's page on a hub means, or the file that it is of; any other name as it is."""
    match = _URL.fullmatch(name.strip()) if len(name) < 1000 else None
    if match is None:
        return name
    file = PurePosixPath(name.strip().partition("?")[0]).name
    return file if file.lower().endswith(".gguf") else match[1] + (match[2] or "")


def squeeze(words: Sequence[str]) -> str:
    """Words joined without separators, a ``v`` in front of a version number dropped."""
    return _VERSION.sub("", "".join(_VERSION.sub("", word) for word in words))


def split_words(name: str) -> tuple[str, ...]:
    """Lower-case words of a name without organisation and bracketed remarks; ``3_1`` is read as 3.1."""
    text = name[:MAX_NAME].strip().lower().replace("\N{NO-BREAK SPACE}", " ")
    text = _CUT.sub(" ", text)
    text = _BRACKETS.sub(" ", text) if not text.startswith(("[", "(")) else text
    text = _DECIMAL.sub(".", text.rsplit("/", 1)[-1])
    return tuple(word for word in (part.strip(".") for part in _WORDS.split(text)) if word)


def spell(name: str) -> ModelSpelling:
    """Take ``name`` apart. The longest words that name a scheme win, the scheme listed first where there are several."""
    words = split_words(name)
    scheme: Scheme | None = None
    unstated: str | None = None
    bare: list[str] = []
    before: tuple[str, ...] = ()
    plain = False
    position = 0
    prefix = prefix_of(name.partition("/")[0]) if "/" in name else ""
    while position < len(words):
        word = words[position]
        length, found = _scheme_at(words, position, prefix) if position else (0, None)
        if found is not None:
            before = before or tuple(bare)
            plain = plain or not found.quantises
            if found.quantises and (scheme is None or found.order < scheme.order):
                scheme = found
            position += length
            continue
        if position and word in unstated_methods():
            before = before or tuple(bare)
            unstated = unstated or word
        elif (not position or word not in _NOISE) and not (unstated and _OF_EXL.fullmatch(word)):
            bare.append(word)
        position += 1
    return ModelSpelling(
        words=words,
        bare=tuple(bare),
        scheme=scheme,
        unstated=None if scheme or plain else unstated,
        before=before or tuple(bare),
    )


def _scheme_at(words: tuple[str, ...], position: int, prefix: str) -> tuple[int, Scheme | None]:
    """The scheme that words from ``position`` name, first as one of the publisher whose schemes have ``prefix`` in front."""
    if prefix:
        length, found = scheme_in((prefix, *words[position : position + 4]), 0)
        if found is not None and length > 1:
            return length - 1, found
    return scheme_in(words, position)


def bits_a_weight(name: str) -> float | None:
    """The bits per weight that a name states (``4.0bpw``), None where it states none."""
    found = _BITS_A_WEIGHT.search(name[:MAX_NAME])
    return float(found.group(1)) if found and 0 < float(found.group(1)) <= 16 else None


def without_dates(words: tuple[str, ...]) -> tuple[str, ...]:
    """``words`` without release dates such as 0528, 2507 or 20250131."""
    return tuple(word for index, word in enumerate(words) if not index or not _DATE.fullmatch(word))


def layers_left(name: str) -> int | None:
    """N of a model ``cut to N layers``, as benchmarks shorten large ones; None for a whole model."""
    found = _CUT.search(name[:MAX_NAME].lower())
    return int(found.group(1)) if found else None
