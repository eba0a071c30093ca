"""What a release has to be: ``python scripts/release/check.py [FOLDER]`` (extra: release; default dist).

Builds source archive and wheel, the wheel once more from the tree; holds both wheels to be the same, the wheel to its size, what
an environment of it alone downloads and takes on disk to theirs, lets it answer there, and writes its bill of materials.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

_ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
#: Megabytes: of the wheel, of it and all that it needs as they are downloaded, of our own part on disk without bytecode, and of
#: the whole environment (numpy is 59 of them).
WHEEL_MB, DOWNLOAD_MB, OWN_MB, CORE_MB = 10.0, 30.0, 20.0, 80.0


def check(target: Path) -> list[str]:
    """Figures, a line each. Ends the program where one is over its limit or the wheels differ."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _run(sys.executable, "-m", "build", "-o", str(target), str(_ROOT))  # the wheel is made from the source archive
        _run(sys.executable, "-m", "build", "--wheel", "-o", str(work / "tree"), str(_ROOT))
        (wheel,) = sorted(target.glob("trilemma-*.whl"))[-1:]
        (again,) = (work / "tree").glob("*.whl")
        differing = different(wheel, again)
        if differing:
            raise SystemExit(f"the wheel of the source archive is not that of the tree: {', '.join(differing[:10])}")
        figures = [_held("wheel", _mb(wheel), WHEEL_MB)]
        _run(sys.executable, "-m", "pip", "download", "-q", "-d", str(work / "all"), str(wheel))
        figures.append(_held("download, with all that it needs", sum(map(_mb, (work / "all").iterdir())), DOWNLOAD_MB))
        venv.create(work / "env", with_pip=True)
        python = next(
            path
            for path in ((work / "env" / "bin" / "python"), (work / "env" / "Scripts" / "python.exe"))
            if path.exists()
        )
        _run(str(python), "-m", "pip", "install", "-q", "--no-compile", "--target", str(work / "site"), str(wheel))
        figures.append(_held("own part on disk", _mb(work / "site" / "trilemma"), OWN_MB))
        figures.append(_held("core environment on disk", _mb(work / "site"), CORE_MB))
        _run(str(python), "-c", f"import sys; sys.path.insert(0, {str(work / 'site')!r}); {_ANSWERS}")
    from sbom import sbom

    bill = wheel.with_suffix(".cdx.json")
    bill.write_text(sbom(wheel), encoding="utf-8")
    return [*figures, f"{wheel.name} and {bill.name} in {target}"]


#: What the wheel must answer on its own.
_ANSWERS = "from trilemma.cli.main import main; assert main(['fit', 'qwen3-8b', '--gpu', 'h100-sxm']) == 0"


def different(one: Path, other: Path) -> list[str]:
    """Names of files that are in one wheel alone or differ."""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        a, b = ({info.filename: info.CRC for info in archive.infolist()} for archive in (first, second))
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def _mb(path: Path) -> float:
    if path.is_file():
        return path.stat().st_size / 1e6
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file() and one.suffix != ".pyc") / 1e6


def _held(name: str, mb: float, most: float) -> str:
    if mb > most:
        raise SystemExit(f"{name}: {mb:.1f} MB are over the {most:g} MB that it may have")
    return f"{name}: {mb:.1f} MB of {most:g}"


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tempfile.gettempdir())
    if done.returncode:
        raise SystemExit(f"{' '.join(words[1:4])} … failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "dist"
    print("\n".join(check(where.resolve())))
