"""Completion scripts of the shells, from what the parsers take. Nothing runs while a user types: all words are in the script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trilemma.cli.completion import CompletedCommand, CompletedOption, Completion

#: What a word of a script may hold without quotes; other signs are left out of descriptions.
_SAFE = re.compile(r"[^\w .,:/=%+()-]")


def bash(found: Completion) -> str:
    """For ``source <(trilemma completion bash)``."""
    pairs = "|".join(f'"{" ".join(one.words)}"' for one in found.commands if len(one.words) == 2)
    lines = ["# bash completion of trilemma", "_trilemma() {", *(line.replace("SUBS", pairs) for line in _WORDS)]
    lines += [f'    local _{kind}s="{" ".join(names)}"' for kind, names in found.values.items()]
    lines.append('    case "$key" in')
    for one in found.commands:
        lines.append(f'    "{" ".join(one.words)}")')
        lines += [f"        {line}" for line in _of_values(one)]
        lines.append(f'        flags="{" ".join(flag for option in one.options for flag in option.flags)}"')
        lines.append(f"        operands={_operands(one)}")
        lines.append("        ;;")
    names = " ".join(one.words[0] for one in found.commands if len(one.words) == 1)
    lines += [f'    *) operands="{names}" flags="--help --version" ;;', "    esac", *_REPLY, "}"]
    return "\n".join([*lines, "complete -F _trilemma trilemma", ""])


def zsh(found: Completion) -> str:
    """For ``source <(trilemma completion zsh)``; zsh runs the script of bash."""
    return "\n".join(["# zsh completion of trilemma", "autoload -U +X bashcompinit && bashcompinit", bash(found)])


def fish(found: Completion) -> str:
    """For ``trilemma completion fish | source``."""
    lines = ["# fish completion of trilemma", "complete -c trilemma -f"]
    lines += [f"set -g __trilemma_{kind}s {' '.join(names)}" for kind, names in found.values.items()]
    for one in found.commands:
        where = "__fish_use_subcommand"
        if len(one.words) == 2:
            where = f"__fish_seen_subcommand_from {one.words[0]}"
        lines.append(f"complete -c trilemma -n {_quoted(where)} -a {one.words[-1]} -d {_quoted(one.summary)}")
    for one in found.commands:
        seen = _quoted("; and ".join(f"__fish_seen_subcommand_from {word}" for word in one.words))
        lines += [f"complete -c trilemma -n {seen} {_fish_option(option, found)}" for option in one.options]
        if one.choices and not any(other.words[0] == one.words[0] for other in found.commands if len(other.words) == 2):
            lines.append(f"complete -c trilemma -n {seen} -a {_quoted(' '.join(one.choices))}")
        elif not one.choices:
            known = one.operand in found.values
            lines.append(f"complete -c trilemma -n {seen} " + (f"-a '$__trilemma_{one.operand}s'" if known else "-F"))
    return "\n".join([*lines, ""])


#: Which command is meant: its name, and that of its sub-command where it has some.
_WORDS = (
    "    local cur prev key word flags operands values",
    '    cur="${COMP_WORDS[COMP_CWORD]}"; prev="${COMP_WORDS[COMP_CWORD-1]}"',
    '    if [[ "$cur" == ":" ]]; then cur=""; fi',
    '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
    '        [[ "$word" == "--" ]] && { COMPREPLY=($(compgen -f -- "$cur")); return; }',
    '        [[ "$word" == -* ]] && { [[ -n "$key" ]] && break; continue; }',
    '        if [[ -z "$key" ]]; then key="$word"; else case "$key $word" in SUBS) key="$key $word" ;; esac; break; fi',
    "    done",
)
_REPLY = (
    '    if [[ "$values" == "FILES" ]]; then COMPREPLY=($(compgen -f -- "$cur"))',
    '    elif [[ "$values" == "ANY" ]]; then COMPREPLY=()',
    '    elif [[ -n "$values" ]]; then COMPREPLY=($(compgen -W "$values" -- "$cur"))',
    '    elif [[ "$cur" == -* ]]; then COMPREPLY=($(compgen -W "$flags" -- "$cur"))',
    '    else COMPREPLY=($(compgen -W "$operands" -- "$cur") $(compgen -f -- "$cur")); fi',
)


def _of_values(command: CompletedCommand) -> Iterator[str]:
    """What follows an option."""
    yield 'case "$prev" in'
    for option in command.options:
        if option.value is not None:
            yield f'{"|".join(option.flags)}) values="{_values(option)}" ;;'
    yield "esac"


def _values(option: CompletedOption) -> str:
    if option.choices:
        return " ".join(option.choices)
    return {"file": "FILES", "": "ANY"}.get(option.value or "", f"$_{option.value}s")


def _operands(command: CompletedCommand) -> str:
    if command.choices:
        return f'"{" ".join(command.choices)}"'
    return '""' if command.operand == "file" else f'"$_{command.operand}s"'


def _fish_option(option: CompletedOption, found: Completion) -> str:
    words = [f"-l {flag.removeprefix('--')}" for flag in option.flags] + [f"-d {_quoted(option.help)}"]
    if option.value is not None:
        names = _quoted(" ".join(option.choices)) if option.choices else f"'$__trilemma_{option.value}s'"
        named = option.choices or option.value in found.values
        words.append(f"-x -a {names}" if named else "-r -F" if option.value == "file" else "-x")
    return " ".join(words)


def _quoted(text: str) -> str:
    return f"'{_SAFE.sub('', text)}'"
