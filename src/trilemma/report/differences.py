"""Changes of commands as Markdown, for a review of code: what moved, and nothing where nothing did."""

from __future__ import annotations

from trilemma.estimate.differences import ChangesJudged, CommandDifference, JudgedSide, objections
from trilemma.foreign_words import shown

#: Figure → what a table calls it.
_WORDS = {
    "memory_gib_per_gpu": "memory per GPU, GiB",
    "kv_cache_tokens": "tokens in the KV cache",
    "max_concurrency": "requests of full length at once",
    "ttft_ms": "mean TTFT, ms",
    "tpot_ms": "mean TPOT, ms",
    "output_tokens_per_s": "output tokens/s",
    "step_s": "s a step",
    "gpus": "GPUs",
    "usd_per_hour": "$/h",
    "usd_per_million_tokens": "$/M tokens",
}


def render_changes(changes: ChangesJudged) -> str:
    """A heading and a table for every command that changed; empty where none did."""
    return "\n\n".join(_command(one, changes) for one in changes.commands)


def _command(one: CommandDifference, changes: ChangesJudged) -> str:
    lines = [f"### {_plain(one.name)}", ""]
    if one.before is None or one.after is None:
        there, word = (one.after, "new") if one.before is None else (one.before, "gone")
        assert there is not None
        lines.append(f"{word}: {_outcome(there)}")
    else:
        lines.append(
            _outcome(one.after)
            if (one.before.fits, one.before.stage, one.before.why) == (one.after.fits, one.after.stage, one.after.why)
            else f"before: {_outcome(one.before)}  \nafter: **{_outcome(one.after)}**"
        )
    if one.figures:
        lines += ["", "| figure | before | after | change |", "|---|--:|--:|--:|"]
        lines += [
            f"| {_WORDS[row.figure]} | {_number(row.before)} | {_number(row.after)} |"
            f" {'' if row.change is None else f'{row.change:+.1%}'}{' worse' if row.worse else ''} |"
            for row in one.figures
        ]
    against = objections(one, changes.allowed)
    if against:
        lines += ["", f"**stopped**: {_plain('; '.join(against))}"]
    return "\n".join(lines)


def _outcome(side: JudgedSide) -> str:
    if side.why:
        return f"not judged: {_plain(side.why)}"
    chance = 0.0 if side.probability is None else side.probability
    sure = "over 99 %" if chance > 0.99 else f"{chance:.0%}"
    return f"{'starts' if side.fits else f'does not start ({side.stage})'}, {sure} sure: {_plain(side.reason)}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _plain(text: str) -> str:
    """Words from outside, in one line and without Markdown of their own."""
    plain = shown(text)
    for mark in "\\`*_[]<>|#":
        plain = plain.replace(mark, f"\\{mark}")
    return plain
