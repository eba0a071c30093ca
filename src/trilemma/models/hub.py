"""Models of the hub: what lies in the local cache, and the hub itself where it may be reached.

Only JSON files and the headers of weight files are read; code that a repository ships is never fetched or run.
"""

from __future__ import annotations

import os
import re
import threading
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from trilemma.errors import InputError, shorten

#: What a hub id looks like: organisation and name of letters, digits, dots, dashes and underscores.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[0-9a-f]{40}")
_FILES = ("config.json", "hf_quant_config.json")
#: How long the hub may take to answer a knock.
_PATIENCE_S = 2.0
_OFF = ("1", "on", "yes", "true")


def is_id(name: str) -> bool:
    """Whether ``name`` has the form ``organisation/name`` of a hub id."""
    return _ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def cache_folder() -> Path:
    """Where huggingface_hub keeps its files: HF_HUB_CACHE, HF_HOME/hub, or ~/.cache/huggingface/hub."""
    stated = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if stated:
        return Path(stated).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "huggingface" / "hub"


def cached_snapshot(name: str) -> Path | None:
    """The folder of the newest cached snapshot of hub id ``name`` that holds a config.json, or None."""
    if not is_id(name):
        return None
    repository = cache_folder() / f"models--{name.replace('/', '--')}"
    try:
        reference = repository / "refs" / "main"
        if reference.is_file():
            with reference.open("rb") as stream:
                revision = stream.read(64).decode("ascii", "replace").strip()
            folder = repository / "snapshots" / revision
            if _REVISION.fullmatch(revision) and (folder / "config.json").is_file():
                return folder
        snapshots = [folder for folder in (repository / "snapshots").iterdir() if (folder / "config.json").is_file()]
        return max(snapshots, key=lambda folder: (folder / "config.json").stat().st_mtime, default=None)
    except OSError:
        return None


def is_offline() -> bool:
    """Whether the environment forbids the network (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)."""
    return any(os.environ.get(name, "").lower() in _OFF for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


@cache
def is_reachable() -> bool:
    """Whether the hub's server, or the proxy before it, takes a connection within `_PATIENCE_S`; asked once.

    Its client would try each file five times over (25 to 48 s without a network).
    """
    import socket  # these two are slow to import
    from urllib.request import getproxies, proxy_bypass

    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    proxies = {} if proxy_bypass(endpoint.hostname or "") else getproxies()
    proxy = proxies.get(endpoint.scheme) or proxies.get("all")
    server = urlsplit(proxy if proxy is None or "//" in proxy else f"//{proxy}") if proxy else endpoint
    answers: list[bool] = []

    def connect() -> None:
        try:
            address = (str(server.hostname), server.port or (80 if server.scheme == "http" else 443))
            with socket.create_connection(address, timeout=_PATIENCE_S):
                answers.append(True)
        except Exception:  # names, addresses and sockets fail in many ways; each means that nobody answers
            answers.append(False)

    # Resolving a name has no timeout of its own, so that the wait is for a thread.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return bool(answers and answers[0])


def why_not_fetched() -> str:
    """In a few words why a hub id that is not in the cache was not fetched, and what to do."""
    if is_offline():
        return "offline by HF_HUB_OFFLINE: give a path to its config.json"
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        return "not in the local hub cache; install trilemma[hub] to ask the hub, or give a path to its config.json"
    if not is_reachable():
        return "the hub cannot be reached; give a path to its config.json"
    return "the hub has no such model; give a path to its config.json"


def fetch(name: str) -> Path | None:
    """Download the JSON files of hub id ``name`` into the hub cache and return their folder.

    None when offline, when huggingface_hub is not installed, or when the hub has no such model or cannot be reached.
    Raises `InputError` where the hub refuses access.
    """
    if is_offline() or not is_id(name):
        return None
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, GatedRepoError
    except ImportError:
        return None
    if not is_reachable():
        return None
    folder: Path | None = None
    for file_name in _FILES:
        try:
            folder = Path(hf_hub_download(name, file_name, etag_timeout=5)).parent
        except GatedRepoError:
            raise InputError(
                f"the hub refuses {shorten(name)} without its licence; log in or give its config.json"
            ) from None
        except EntryNotFoundError:
            continue
        except Exception:
            # Network, proxy and server errors come in many types; each means that the hub did not answer.
            return folder
    return folder
