"""Names and keywords of libraries: those that never existed, were removed or are deprecated (data/lint)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

from trilemma.diagnosis.findings import Finding, Severity
from trilemma.errors import nearest
from trilemma.linting.facts import facts as lint_facts
from trilemma.linting.said import at
from trilemma.linting.script import Script

_SEVERITY: dict[str, Severity] = {"never": "error", "removed": "error", "deprecated": "context"}


def findings(script: Script) -> Iterator[Finding]:
    told: set[tuple[int, str]] = set()
    for node, name in _uses(script):
        found = _of_row(script, node, name) or _of_lists(script, node, name)
        if found is not None and (key := (script.line(node), found.claim)) not in told:
            told.add(key)
            yield found
    for call in script.calls():
        yield from _of_keywords(script, call)
        yield from _both_set(script, call)


def _uses(script: Script) -> Iterator[tuple[ast.AST, str]]:
    """(node, dotted name) of everything imported and of every whole chain of names that begins with an import."""
    for node in script.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) and _is_guarded(script, node):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node, f"{node.module}.{one.name}") for one in node.names if one.name != "*")
        elif isinstance(node, ast.Import):
            yield from ((node, one.name) for one in node.names)
        elif isinstance(node, ast.Attribute) and not isinstance(script.parents.get(node), ast.Attribute):
            name = script.imported(node)
            if name is not None and not _is_guarded(script, node):
                yield node, name


def _is_guarded(script: Script, node: ast.AST) -> bool:
    """Whether the script itself asks for the name first: ``hasattr(torch, …)`` around it, or a handler of what is missing."""
    for above in script.up(node):
        if isinstance(above, ast.Try) and any(_catches_missing(handler) for handler in above.handlers):
            return True
        if isinstance(above, ast.If | ast.IfExp) and "hasattr(" in ast.unparse(above.test):
            return True
    return False


def _catches_missing(handler: ast.ExceptHandler) -> bool:
    caught = "" if handler.type is None else ast.unparse(handler.type)
    return caught == "" or any(
        name in caught for name in ("ImportError", "AttributeError", "ModuleNotFound", "Exception")
    )


@cache
def _rows() -> tuple[Mapping[str, Any], ...]:
    return tuple(lint_facts("lint/apis.toml")["row"])


def _of_row(script: Script, node: ast.AST, name: str) -> Finding | None:
    for row in _rows():
        if "keyword" not in row and _matches(row["name"], name):
            return _told(script, node, row, row["name"].removeprefix("*."))
    return None


def _matches(pattern: str, name: str) -> bool:
    """``a.*.b`` means one part in between, ``*.b.c`` any beginning; a name below the pattern matches too."""
    if pattern == "*":
        return True
    wanted, parts = pattern.split("."), name.split(".")
    if wanted[0] == "*":
        tail = wanted[1:]
        return any(parts[start : start + len(tail)] == tail for start in range(len(parts) - len(tail) + 1))
    return len(parts) >= len(wanted) and all(one in ("*", other) for one, other in zip(wanted, parts, strict=False))


def _told(script: Script, node: ast.AST, row: Mapping[str, Any], what: str) -> Finding:
    state, version = row["state"], row.get("version", "")
    words = {
        "never": f"{what} never existed",
        "removed": f"{what} is gone by {version}",
        "deprecated": f"{what} is deprecated since {version}",
    }[state]
    return at(script, node, f"api.{state}", words, f"{row['instead']} ({row['source']})", severity=_SEVERITY[state])


@cache
def libraries() -> Mapping[str, Any]:
    """Library → its version, modules (name → names) and calls (name → keywords)."""
    found: Mapping[str, Any] = lint_facts("lint/names.json")["libraries"]
    return found


@cache
def _names_of(library: str, module: str) -> frozenset[str]:
    added = lint_facts("lint/apis.toml")["added"].get(module, ())
    return frozenset((*libraries()[library]["modules"][module].split(), *added))


@lru_cache(maxsize=4096)
def _nearest(name: str, library: str, module: str) -> tuple[str, ...]:
    """Names of a module that look like ``name``: of those that begin alike and are about as long, for modules are large."""
    alike = [
        one
        for one in _names_of(library, module)
        if one[:2].lower() == name[:2].lower() and abs(len(one) - len(name)) < 9
    ]
    return tuple(nearest(name, alike, most=2))


def _of_lists(script: Script, node: ast.AST, name: str) -> Finding | None:
    """A name that the module's list lacks."""
    library = name.partition(".")[0]
    if library not in libraries():
        return None
    modules = libraries()[library]["modules"]
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:depth])
        if module in modules:
            return _missing(script, node, library, module, parts[depth])
    return None


def _missing(script: Script, node: ast.AST, library: str, module: str, name: str) -> Finding | None:
    names = _names_of(library, module)
    if name in names or name.startswith("_") or f"{module}.{name}" in libraries()[library]["modules"]:
        return None
    if name.endswith("TokenizerFast") and name.removesuffix("Fast") in names:
        return None  # Transformers 5 has one class for both and answers to either name
    if name in _earlier(library, "modules", module):
        return _of_earlier(script, node, library, f"{module}.{name}")
    near = _nearest(name, library, module)
    words = "names there are" if len(near) > 1 else "name there is"
    hint = f"the nearest {words} {' and '.join(near)}" if near else f"see the reference of {module}"
    version = libraries()[library]["version"]
    return at(
        script, node, "api.unknown", f"{library.replace('_', '-')} {version} has no {module}.{name}", hint,
        confidence="supported",
    )  # fmt: skip


@cache
def _earlier(library: str, table: str, name: str) -> frozenset[str]:
    """What a module or a call had in an earlier version that is listed, and has no more."""
    return frozenset(libraries()[library].get("earlier", {}).get(table, {}).get(name, "").split())


def _of_earlier(script: Script, node: ast.AST, library: str, what: str) -> Finding:
    """Right for the version it was written for: told, not held against the script."""
    newest, earlier = libraries()[library]["version"], libraries()[library]["earlier"]["version"]
    return at(
        script, node, "api.earlier-version", f"{what} is of {library} {earlier} and gone by {newest}",
        f"the migration guide of {library} says what took its place, or stay below {newest.partition('.')[0]}",
        severity="context",
    )  # fmt: skip


def _of_keywords(script: Script, call: ast.Call) -> Iterator[Finding]:
    given = [one for one in call.keywords if one.arg is not None]
    name = script.imported(call.func)
    if name is None:
        name = _method_of_import(script, call.func)
    for one in given:
        row = next(
            (
                row
                for row in _rows()
                if row.get("keyword") == one.arg and (name or row["name"] == "*") and _matches(row["name"], name or "")
            ),
            None,
        )
        if row is not None:
            where = "" if row["name"] == "*" else f" of {row['name'].replace('*.', '')}"
            yield _told(script, one.value, row, f"{one.arg}={where}")
        elif name is not None:
            yield from _unknown_keyword(script, call, name, one)


def _both_set(script: Script, call: ast.Call) -> Iterator[Finding]:
    """Switches of one call of which at most one may be on."""
    name = script.imported(call.func)
    on = {one.arg for one in call.keywords if isinstance(one.value, ast.Constant) and one.value.value is True}
    for row in lint_facts("lint/apis.toml")["exclusive"] if name is not None else ():
        if on.issuperset(row["keywords"]) and any(_matches(one, str(name)) for one in row["names"]):
            words = f"{' and '.join(f'{one}=True' for one in row['keywords'])} of {name} exclude each other"
            yield at(script, call, "api.exclusive", words, f"{row['instead']} ({row['source']})", severity="error")


def _method_of_import(script: Script, func: ast.expr) -> str | None:
    """``AutoModel.from_pretrained`` is a chain already; of ``model.generate`` nothing is known."""
    return script.imported(func) if isinstance(func, ast.Attribute) else None


def _unknown_keyword(script: Script, call: ast.Call, name: str, given: ast.keyword) -> Iterator[Finding]:
    library = name.partition(".")[0]
    engine = lint_facts("lint/apis.toml")["flag_calls"].get(name)
    if engine is not None:
        yield from _unknown_flag(script, call, name, given, engine)
        return
    keywords = libraries().get(library, {}).get("calls", {}).get(name)
    if keywords is None or given.arg in keywords.split():
        return
    if given.arg in _earlier(library, "calls", name):
        yield _of_earlier(script, given.value, library, f"{given.arg}= of {name}")
        return
    near = nearest(str(given.arg), keywords.split(), most=2)
    hint = f"the nearest it takes are {' and '.join(near)}" if near else "see its signature"
    version = libraries()[library]["version"]
    yield at(
        script, given.value, "api.unknown-keyword", f"{name} of {library} {version} takes no keyword {given.arg}", hint,
        confidence="supported",
    )  # fmt: skip


def _unknown_flag(script: Script, call: ast.Call, name: str, given: ast.keyword, engine: str) -> Iterator[Finding]:
    from trilemma import engines

    table = engines.get(engine).flags()
    word = f"--{str(given.arg).replace('_', '-')}"
    found = table.lookup(word)
    if str(given.arg) in ("model", "tokenizer", "model_path"):
        return
    if found is not None and not found.flag.gone_at(table.versions[-1]):
        return
    newest = ".".join(map(str, table.versions[-1]))
    if found is not None:
        gone, today = ".".join(map(str, found.flag.removed or ())), found.flag.renamed_to or found.flag.instead
        fix = f"{today.replace('-', '_')}=" if today else "leave it out"
        yield at(
            script,
            given.value,
            "api.removed",
            f"{given.arg}= of {name} is gone by {engine} {gone}",
            f"{fix} ({table.source})",
        )
        return
    near = nearest(word[2:], table.flags, most=2)
    hint = f"the nearest are {' and '.join(one.replace('-', '_') for one in near)}" if near else "leave it out"
    yield at(
        script, call, "api.unknown-keyword", f"{name} of {engine} {newest} is not known to take {given.arg}", hint,
        confidence="supported",
    )  # fmt: skip
