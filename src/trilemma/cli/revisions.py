"""Files of a git checkout as they stood at a revision, beside those of today."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from trilemma.errors import InputError, shorten

_MOST_FILES, _MOST_BYTES, _GIT_S = 500, 1 << 20, 20.0


def pairs_at(
    revision: str, paths: Sequence[str], *, endings: tuple[str, ...], folder: Path
) -> list[tuple[str, Path | None, Path | None]]:
    """(name, as it stood at ``revision``, as it is) of every file with one of ``endings`` under ``paths``; None: not there.

    Old ones are written below ``folder``. Files that are alike to the byte are left out. Raises `InputError` where git knows no
    such revision.
    """
    if revision.startswith("-") or not revision.strip():
        raise InputError(f"--rev {shorten(revision)!r} is no revision; give one such as main or HEAD~1")
    found: list[tuple[str, Path | None, Path | None]] = []
    for path in map(Path, paths):
        where = path if path.is_dir() else path.parent
        _git(where, "rev-parse", "--git-dir", why=f"{where} lies in no git checkout; give two files instead of --rev")
        _git(
            where,
            "rev-parse",
            "--verify",
            "--quiet",
            f"{revision}^{{commit}}",
            why=f"git knows no {revision} in {where}; give a branch, a tag or a commit (a shallow clone has few)",
        )
        names = _below(path, where, revision, endings)
        if len(names) > _MOST_FILES:
            raise InputError(f"{path} holds {len(names):,} files to compare; name a folder with at most {_MOST_FILES}")
        for name in names:
            now = where / name
            old = _git(where, "show", f"{revision}:./{name}")
            text = now.read_bytes()[:_MOST_BYTES] if now.is_file() else None
            if old is None and text is None:
                raise InputError(f"{now} is neither here nor at {revision}")
            if old == text:
                continue
            before = None
            if old is not None:
                before = folder / str(len(found)) / Path(name).name
                before.parent.mkdir(parents=True)
                before.write_bytes(old)
            found.append((str(now), before, now if text is not None else None))
    return found


def _below(path: Path, where: Path, revision: str, endings: tuple[str, ...]) -> list[str]:
    """Names relative to ``where`` of the files under ``path`` then and now."""
    if not path.is_dir():
        return [path.name]
    then = _git(where, "ls-tree", "-r", "--name-only", "-z", revision, "--", ".") or b""
    now = [file.relative_to(where).as_posix() for file in sorted(where.rglob("*")) if file.is_file()]
    names = dict.fromkeys([*now, *then.decode(errors="replace").split("\0")])
    return [name for name in names if name.endswith(endings)]


def _git(where: Path, *words: str, why: str | None = None) -> bytes | None:
    """What git prints, bounded; None where it fails, or `InputError` with ``why``."""
    try:
        done = subprocess.run(["git", "-C", str(where), *words], capture_output=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise InputError(f"git does not answer in {where}; --rev needs a git checkout") from None
    if done.returncode == 0:
        return done.stdout[:_MOST_BYTES]
    if why is not None:
        raise InputError(why)
    return None
