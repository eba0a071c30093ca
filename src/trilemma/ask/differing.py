"""What a change of a command or manifest changes: both judged, the figures that moved side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trilemma.ask.answers import Shown
from trilemma.ask.checking import cards_of, checked_engine, words_of
from trilemma.ask.options import CHECK, settled
from trilemma.ask.questions import named_cards
from trilemma.errors import InputError, shorten, with_flags
from trilemma.estimate.differences import ChangesJudged, CommandDifference, JudgedSide, differences, objections

#: Engines of one file.
_MOST_ENGINES = 64
_MANIFESTS = (".yaml", ".yml")


class Changes(Shown, ChangesJudged):
    """`ChangesJudged`, as an answer that shows itself: a table in Markdown, nothing where nothing changed."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether the change may go on: nothing stops starting, nothing is worse than allowed."""
        return not any(objections(one, self.allowed) for one in self.commands)

    def screen(self, *, explain: bool, width: int) -> str:  # noqa: ARG002 - Markdown has no width
        from trilemma.report.differences import render_changes

        return render_changes(self)

    def show(self, *, explain: bool = False, width: int | None = None) -> str:
        """The table; lines of Markdown are not wrapped."""
        return self.screen(explain=explain, width=width or 0)


def diff(
    before: Any, after: Any, gpu: Any = None, *, least: float = 0.01, worse: Mapping[str, float] | None = None,
    name: str | None = None, **options: Any,
) -> Changes:  # fmt: skip
    """What becomes of a command, or of every engine of a manifest, when ``before`` turns into ``after``.

    Both are commands (text or words) or paths of manifests and scripts; None: there is none. ``gpu`` is the card where
    the labels of a manifest name none. ``least`` is the share from which a change is told, ``worse`` the shares by figure ("" for
    all) by which it may be worse. Options are those of `check`.
    """
    if before is None and after is None:
        raise InputError("there is nothing to compare; give two commands or two files")
    if not 0 <= least < 1:
        raise InputError(f"`least` {least:g} is no share of at least 0 and below 1, such as 0.01")
    asked = settled(CHECK, options)
    gpu = known_cards(gpu)
    sides = [_judged_sides(one, gpu, asked) for one in (before, after)]
    found = []
    for key, old, new in _paired(*sides):
        shown = " ".join(part for part in (name or "", key) if part) or "command"
        estimates = [None if one is None else one.estimate for one in (old, new)]
        both = old is None or new is None or (estimates[0] is not None and estimates[1] is not None)
        rows = differences(*estimates, least=least) if both else ()
        found.append(CommandDifference(name=shown, before=old, after=new, figures=rows))
    changed = tuple(one for one in found if one.changed)
    return Changes(commands=changed, unchanged=len(found) - len(changed), allowed=dict(worse or {}))


def _paired(
    before: Mapping[str, JudgedSide], after: Mapping[str, JudgedSide]
) -> list[tuple[str, JudgedSide | None, JudgedSide | None]]:
    """(name, before, after): engines of one name, and the one left on each side, a command beside a manifest's engine or one
    renamed, with one another; others are gone or new."""
    gone, new = ([key for key in one if key not in other] for one, other in ((before, after), (after, before)))
    renamed = gone[0] if len(gone) == len(new) == 1 else None
    found: list[tuple[str, JudgedSide | None, JudgedSide | None]] = []
    for key in before:
        if key == renamed:
            name = f"{key} → {new[0]}" if key and new[0] else key or new[0]
            found.append((name, before[key], after[new[0]]))
        else:
            found.append((key, before[key], after.get(key)))
    return found if renamed is not None else [*found, *((key, None, after[key]) for key in new)]


def known_cards(gpu: Any) -> Any:
    """``gpu``, or this machine's cards. A misspelled card would leave both sides unjudged, and nothing told: `InputError`."""
    named = named_cards(gpu)
    if named is not None:
        cards_of(named)
    return named


def together(parts: Sequence[Changes]) -> Changes:
    """Several, as one."""
    return Changes(
        commands=tuple(one for part in parts for one in part.commands),
        unchanged=sum(part.unchanged for part in parts),
        allowed=parts[0].allowed if parts else {},
    )


def _judged_sides(what: Any, gpu: Any, asked: SimpleNamespace) -> dict[str, JudgedSide]:
    """Name of the container ("" of a command) → the engine, judged."""
    if what is None:
        return {}
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith((*_MANIFESTS, ".sh")) and " " not in what):
        return _of_file(Path(what), gpu, asked)
    from trilemma.engines.extract import extract

    words = words_of(what)
    return {"": _judged(*extract(words), gpu, asked, " ".join(words))}


def _of_file(path: Path, gpu: Any, asked: SimpleNamespace) -> dict[str, JudgedSide]:
    from trilemma.engines.extract import extract, in_manifest

    if not path.name.endswith(_MANIFESTS):
        engine, own = extract([str(path)])
        return {"": _judged(engine, own, gpu, asked, " ".join(own))}
    from trilemma.commands.bounded_yaml import load_all
    from trilemma.commands.pod_labels import cards_named
    from trilemma.outside_files import read_text

    documents = load_all(read_text(path), name=str(path))
    found: dict[str, JudgedSide] = {}
    for document in documents:
        labels = cards_named(document)
        for run, (engine, own) in in_manifest([document])[:_MOST_ENGINES]:
            key = "/".join((*run.within[-1:], run.name))
            found[key] = _judged(engine, own, labels[0] if labels else gpu, asked, " ".join(own))
    return found


def _judged(engine: str, own: list[str], gpu: Any, asked: SimpleNamespace, shown: str) -> JudgedSide:
    command = shorten(shown, most=400)
    try:
        answer = checked_engine(engine, own, gpu, asked)
    except InputError as error:
        return JudgedSide(command=command, why=with_flags(error))
    return JudgedSide(
        command=command, fits=answer.fits, stage=answer.verdict.stage, probability=answer.verdict.probability,
        reason=answer.reason, estimate=answer,
    )  # fmt: skip
