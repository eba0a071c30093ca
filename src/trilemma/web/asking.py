"""What a browser may ask, in names and numbers alone, and the answers kept for those who ask the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trilemma.ask import reading
from trilemma.ask.options import CHECK, COMPARE, FIT, OPTIONS, PLAN, RECOMMEND, Option, options_of
from trilemma.ask.purchase_options import PURCHASE
from trilemma.ask.training_options import TRAINING
from trilemma.errors import InputError, shorten
from trilemma.fence import fenced

#: Options that name files or folders of the machine, and those whose value may.
_OF_FILES = frozenset({"models", "log", "profile", "host", "price", "front"})
#: Characters of any value, GPUs of a question, and cards set side by side.
_MOST_CHARACTERS, _MOST_GPUS, _MOST_CARDS = 400, 4096, 6
#: Characters of a command that is pasted.
MOST_COMMAND = 20_000
#: Models and spellings of cards that are remembered.
_MODELS_KEPT, _CARDS_KEPT = 32, 1024
_TRAINS = frozenset({"seq", "train"})
_QUESTIONS = (FIT, PLAN, COMPARE, RECOMMEND, CHECK)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptAnswer:
    """An answer as it goes out: the document (or the picture), and whether it is yes."""

    document: str
    yes: bool


class Answers:
    """Answers by question, the least lately asked forgotten beyond ``most`` characters of documents together."""

    def __init__(self, most: int = 32 << 20) -> None:
        self._most, self._held = most, 0
        self._kept: OrderedDict[tuple[Any, ...], KeptAnswer] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, question: str, asked: Mapping[str, str]) -> KeptAnswer:
        """The answer to ``question`` with the words of a query. Raises `InputError` for what cannot be, or may not be asked."""
        return self.kept(question, asked) or self.keep(question, asked, made(question, asked))

    def kept(self, question: str, asked: Mapping[str, str]) -> KeptAnswer | None:
        """The answer that was made before, if it is still held."""
        key = _key(question, asked)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, question: str, asked: Mapping[str, str], answer: KeptAnswer) -> KeptAnswer:
        """``answer``, held from now on."""
        key = _key(question, asked)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = answer
                self._held += len(answer.document)
            while self._held > self._most and len(self._kept) > 1:
                self._held -= len(self._kept.popitem(last=False)[1].document)
        return answer


def _key(question: str, asked: Mapping[str, str]) -> tuple[Any, ...]:
    return (question, *sorted((name, value.strip()) for name, value in asked.items() if value.strip()))


#: Kinds of answers beside documents: an answer's picture as Vega-Lite, and drawn.
SPECIFICATION, DRAWING = "specification", "drawing"


def made(kind: str, asked: Mapping[str, str]) -> KeptAnswer:
    """The document of a question, or the picture of the one that ``ask`` names. Raises `InputError`."""
    if kind not in (SPECIFICATION, DRAWING):
        answer = answered(kind, asked)
        return KeptAnswer(document=answer.to_json(indent=None), yes=answer.yes)
    import json

    from trilemma.report.charts.write import printable, svg_of

    answer = answered(asked.get("ask", FIT), {name: value for name, value in asked.items() if name != "ask"})
    spec = answer.chart()
    if spec is None:
        raise InputError("this answer has no picture")
    spec = printable(spec)
    return KeptAnswer(document=svg_of(spec) if kind == DRAWING else json.dumps(spec, allow_nan=False), yes=answer.yes)


def answered(question: str, asked: Mapping[str, str]) -> Any:
    """The answer itself, made without a look at the machine's files or the network."""
    import trilemma as tl

    if question not in _QUESTIONS:
        raise InputError(f"{shorten(question)!r} is no question; ask {', '.join(_QUESTIONS)}")
    for name, value in asked.items():
        if len(value) > (MOST_COMMAND if name == "command" else _MOST_CHARACTERS) or len(name) > _MOST_CHARACTERS:
            raise InputError(f"`{shorten(name)}` is longer than is read here")
    words = {name: value for name, value in asked.items() if value.strip()}
    options = _options(question, words)
    with fenced():
        if question == CHECK:
            command = words.get("command", "")
            return tl.check(command, gpu=_card(words["gpu"]) if "gpu" in words else None, **options)
        model = _model(words)
        if question == RECOMMEND:
            return tl.recommend(model, **options)
        if question == COMPARE:
            cards = [one.strip() for one in words.get("gpu", "").split(",") if one.strip()]
            if not 1 <= len(cards) <= _MOST_CARDS:
                raise InputError(
                    f"`gpu` names {len(cards)} cards to compare; give 1 to {_MOST_CARDS}, separated by commas"
                )
            return tl.compare(model, [_card(one) for one in cards], **options)
        ask: Callable[..., Any] = tl.fit if question == FIT else tl.plan
        return ask(model, _card(words.get("gpu", "")), **options)


def _options(question: str, words: Mapping[str, str]) -> dict[str, Any]:
    """The options among ``words``, read; every other word is refused."""
    known = known_options(question, trains=bool(_TRAINS & words.keys()))
    found: dict[str, Any] = {}
    for name, value in words.items():
        if name in ("model", "gpu", "command"):
            continue
        if name not in known:
            raise InputError(f"`{shorten(name)}` is no option of {question} here; use {', '.join(known)}")
        if known[name].read is reading.truth or known[name].maybe:
            found[name] = value.lower() in ("1", "true", "yes", "on")
        else:
            found[name] = _plain(name, value, known[name])
    return found


def known_options(question: str, *, trains: bool = False) -> dict[str, Option]:
    """Name or alias → option of ``question`` that names no file."""
    table: tuple[Option, ...] = (*(TRAINING if trains else OPTIONS), *(PURCHASE if question == RECOMMEND else ()))
    options = options_of(question, table)
    known = {name: option for name, option in options.items() if name not in _OF_FILES}
    return known | {alias: option for option in known.values() for alias in option.aliases}


def _plain(name: str, value: str, option: Option) -> Any:
    """A word that is no path; whole numbers where the option has such choices."""
    if "/" in value and name != "serve":
        raise InputError(f"`{name}` {shorten(value)!r} holds a slash; files of this server are not read")
    if option.choices is not None and isinstance(option.choices[0], int) and value.strip().isdecimal():
        return int(value)
    return value


def _model(words: Mapping[str, str]) -> Any:
    """A model of the catalogue, by its name or hub id."""
    name = words.get("model", "")
    if not name:
        raise InputError("no model is named; give `model`, such as llama-3.1-70b")
    if (
        "\\" in name
        or name.startswith((".", "/", "~"))
        or ".." in name
        or name.lower().endswith((".json", ".gguf", ".safetensors"))
    ):
        raise InputError(
            f"`model` {shorten(name)!r} is a path; name a model of the catalogue, or a hub id that it knows"
        )
    return _read(name)


@lru_cache(maxsize=_MODELS_KEPT)
def _read(name: str) -> Any:
    """The model of that name, read once: what is remembered of it (`timing.operators.model_work`) goes by identity."""
    import trilemma as tl

    return tl.load_model(name)


def _card(text: str) -> str:
    """A card of the catalogue and how many."""
    if not text:
        raise InputError("no GPU is named; give `gpu`, such as h200-sxm:8")
    if "/" in text or "\\" in text or text.lower().endswith(".toml") or text.strip().lower().startswith("auto"):
        raise InputError(
            f"`gpu` {shorten(text)!r} is not of the catalogue; name a card and how many, such as h200-sxm:8"
        )
    count = text.rpartition(":")[2]
    if count.isdecimal() and int(count) > _MOST_GPUS:
        raise InputError(f"`gpu` {shorten(text)!r}: at most {_MOST_GPUS} GPUs are laid out here")
    return "+".join(map(_spelt_out, text.split("+")))


@lru_cache(maxsize=_CARDS_KEPT)
def _spelt_out(text: str) -> str:
    """``h100-sxm:8`` with the card's own id, which is found without a look at the names of all; as it was where it names none."""
    from trilemma.hardware.catalogue import find

    name, colon, count = text.strip().rpartition(":") if ":" in text else (text.strip(), "", "")
    try:
        return f"{find(name).id}{colon}{count}"
    except InputError:
        return text
