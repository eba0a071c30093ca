"""How one model is spelled by hubs, tables and people, folded into keys that can be compared.

``meta-llama/Llama-3.1-70B-Instruct``, ``Llama 3.1:70b``, ``LLAMA3.1_70B [SFT]`` and ``llama3_1-70b`` are one model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from trilemma.models.quantized.schemes import Scheme, scheme_in, unstated_methods

MAX_NAME = 300
#: Words that say how a checkpoint was tuned, packed or published, not what its architecture is.
_NOISE = frozenset(
    """
    instruct it chat hf base sft dpo preview finetuned edge trtllm meta lora qlora full tuned unsloth ct qat mtp release
    model instruction instructions pt mlx community dynamic ud abliterated compressed quantized vllm ollama v0.1 v1.0
    modelopt dyn latest interactive
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
    while position < len(words):
        word = words[position]
        length, found = scheme_in(words, position) if position else (0, None)
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
        elif not position or word not in _NOISE:
            bare.append(word)
        position += 1
    return ModelSpelling(
        words=words,
        bare=tuple(bare),
        scheme=scheme,
        unstated=None if scheme or plain else unstated,
        before=before or tuple(bare),
    )


def without_dates(words: tuple[str, ...]) -> tuple[str, ...]:
    """``words`` without release dates such as 0528, 2507 or 20250131."""
    return tuple(word for index, word in enumerate(words) if not index or not _DATE.fullmatch(word))


def layers_left(name: str) -> int | None:
    """N of a model ``cut to N layers``, as benchmarks shorten large ones; None for a whole model."""
    found = _CUT.search(name[:MAX_NAME].lower())
    return int(found.group(1)) if found else None
