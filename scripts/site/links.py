"""Links of a built site: to pages and anchors that are there, and nothing loaded from elsewhere."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: What a browser loads by itself, element → attribute.
_LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
#: Kinds of `link` that load nothing.
_UNLOADED = {"canonical", "prev", "next", "alternate", "edit"}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in _LOADED and _LOADED[tag] in found and found.get("rel", "") not in _UNLOADED:
            self.loaded.append(found[_LOADED[tag]])


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def faults(site: Path) -> list[str]:
    """What is wrong with the links of ``site``, a line each."""
    found = []
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # its links start at the root that the server has
            continue
        page = _read(path)
        for address in (*page.links, *page.loaded):
            said = f"{path.relative_to(site)}: {address}"
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loaded and parts.scheme != "data":
                    found.append(f"{said} (loaded from elsewhere)")
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{said} (no such page)")
            elif (
                parts.fragment
                and target.suffix == ".html"
                and unquote(parts.fragment) not in _read(target).anchors | {"__top"}
            ):
                found.append(f"{said} (no such anchor)")
    return found
