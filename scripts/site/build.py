"""The documentation as a site: ``python scripts/site/build.py [FOLDER]`` (extra: docs; default build/site).

The documents are copied beside the pages that are made (`pages`), so that nothing is written into the tree but the site. Every
warning of the generator, every link to a page or anchor that is not there and every request to elsewhere is an error.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(_ROOT / "src")]


def gather(folder: Path) -> None:
    """The documents, the pages that are made, and what the generator reads, into ``folder``."""
    from notebook_page import notebook_page
    from pages import made_pages

    shutil.copytree(_ROOT / "docs", folder / "docs")
    for name, text in {**made_pages(), "notebook.md": notebook_page()}.items():
        path = folder / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copy(Path(__file__).parent / "site.css", folder / "docs" / "site.css")
    settings = (_ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (folder / "mkdocs.yml").write_text(settings + unlisted(settings), encoding="utf-8")
    (folder / "src").symlink_to(_ROOT / "src")


def unlisted(settings: str) -> str:
    """Lines that add the documents which the navigation, the last part of ``settings``, does not name yet."""
    found = [path.name for path in sorted((_ROOT / "docs").glob("*.md")) if f" {path.name}\n" not in settings]
    return "".join(["  - More:\n", *(f"      - {name}\n" for name in found)]) if found else ""


def build(target: Path) -> None:
    """The whole site at ``target``. Ends the program with what is wrong with it."""
    from links import faults

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        gather(folder)
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        if done.returncode or "Warning" in said:
            raise SystemExit(f"the site does not build:\n{said}")
        found = faults(folder / "site")
        if found:
            raise SystemExit("links that lead nowhere, or elsewhere:\n" + "\n".join(found))
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(folder / "site", target)


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "build" / "site"
    build(where)
    print(f"{where}: {sum(1 for _ in where.rglob('*.html'))} pages")
