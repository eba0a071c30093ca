"""The hub: asked only where it may be, for JSON files alone."""

from __future__ import annotations

import json
import sys
import time
import types

import pytest

from trilemma.errors import InputError, UnknownName
from trilemma.models import catalogue, hub
from trilemma.models.resolve import load_model

IS_REACHABLE = hub.is_reachable
CONFIG = {key: value for key, value in catalogue.config("qwen3-0.6b").items() if not key.startswith("_")}


class _EntryNotFoundError(Exception):
    pass


class _GatedRepoError(Exception):
    pass


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """A stand-in for huggingface_hub that keeps what it was asked for."""
    requests = []

    def download(repository, name, **_):
        requests.append((repository, name))
        if "gated" in repository:
            raise _GatedRepoError
        if "unreachable" in repository:
            raise ConnectionError
        if name != "config.json":
            raise _EntryNotFoundError
        path = tmp_path / "config.json"
        path.write_text(json.dumps(CONFIG))
        return str(path)

    monkeypatch.setattr(hub, "is_reachable", lambda: True)
    package, errors = types.ModuleType("huggingface_hub"), types.ModuleType("huggingface_hub.errors")
    package.hf_hub_download = download
    errors.EntryNotFoundError, errors.GatedRepoError = _EntryNotFoundError, _GatedRepoError
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TRILEMMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return requests


def test_an_id_that_nothing_here_knows_is_fetched(asked):
    assert len(load_model("someone/Brand-New").layers) == 28
    assert {name for _, name in asked} == {"config.json", "hf_quant_config.json"}


def test_the_catalogue_spares_the_network(asked):
    load_model("Qwen/Qwen3-32B")
    assert asked == []


def test_offline_means_offline(asked, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnknownName, match="offline"):
        load_model("someone/Brand-New")
    assert asked == []


def test_a_hub_that_breaks_off_offers_the_catalogue(asked):
    with pytest.raises(UnknownName, match="the hub has no such model; give a path"):
        load_model("unreachable/Qwen9-32B")
    assert asked


def _refused(*_, **__):
    raise OSError("Network is unreachable")


def _hangs(*_, **__):
    time.sleep(30)


@pytest.mark.parametrize("connect", [_refused, _hangs])
@pytest.mark.parametrize("proxy", ["", "http://proxy.invalid:3128"])
def test_without_a_network_no_file_is_asked_for_and_the_answer_is_at_once(asked, monkeypatch, connect, proxy):
    """huggingface_hub would try five times for each of two files: 47.7 s."""
    monkeypatch.setattr(hub, "is_reachable", IS_REACHABLE)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.setattr("socket.create_connection", connect)
    IS_REACHABLE.cache_clear()
    began = time.monotonic()
    with pytest.raises(UnknownName, match="the hub cannot be reached; give a path"):
        load_model("Qwen/Qwen9-32B")
    assert time.monotonic() - began < 3
    assert not asked
    IS_REACHABLE.cache_clear()


@pytest.mark.usefixtures("asked")
def test_a_gated_model_says_so():
    with pytest.raises(InputError, match="licence"):
        load_model("gated/Brand-New")


@pytest.mark.parametrize("name", ["a/b/c", "../x", "a/..", "a--b/c", "a/b c", "", "a/" + "b" * 200])
def test_what_is_no_id(name):
    assert not hub.is_id(name)


def test_where_the_cache_lies(monkeypatch, tmp_path):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hub.cache_folder() == tmp_path / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert hub.cache_folder() == tmp_path / "home" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "own"))
    assert hub.cache_folder() == tmp_path / "own"
