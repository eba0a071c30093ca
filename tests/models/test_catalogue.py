"""Every entry of the model catalogue loads, is counted, and counts what its publisher counts."""

from __future__ import annotations

import json
import time

import pytest

import trilemma as tl
from trilemma.data.digest import DATA
from trilemma.errors import InputError
from trilemma.models import catalogue
from trilemma.models.parameters import count
from trilemma.models.resolve import load_model

PUBLISHED = [entry for entry in catalogue.entries().values() if entry.parameters]


def test_there_are_enough_models():
    assert len(catalogue.names()) >= 120
    assert len(PUBLISHED) >= 80


@pytest.mark.parametrize("name", catalogue.names())
def test_entry_loads_with_source_and_date(name):
    config = catalogue.config(name)
    assert config["_source"]
    assert config["_as_of"]
    model = load_model(name)
    assert count(model).total > 2 * 10**7
    assert model.source.startswith("catalogue ")


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry.name)
def test_totals_are_the_published_ones(entry):
    assert count(load_model(entry.name)).total == pytest.approx(entry.parameters, rel=1e-6)


def test_every_file_is_in_the_index_and_no_id_means_two_entries():
    files = {path.stem for path in (DATA / "models").glob("*.json")} - {"index"}
    assert files == set(catalogue.names())
    ids = [one.lower() for entry in catalogue.entries().values() for one in entry.ids]
    assert len(ids) == len(set(ids))


def test_files_hold_no_bookkeeping_keys():
    for path in (DATA / "models").glob("*.json"):
        assert not {"transformers_version", "bos_token_id", "eos_token_id", "auto_map"} & set(
            json.loads(path.read_text())
        )


def test_an_entry_that_is_none():
    with pytest.raises(InputError, match="no entry"):
        catalogue.config("../../secrets")


def test_loading_by_name_is_quick():
    load_model("llama-3.1-8b")
    took = []
    for name in ("llama-3.1-70b", "deepseek-v3", "qwen3-32b"):
        start = time.process_time()
        load_model(name)
        took.append(time.process_time() - start)
    assert min(took) < 0.06


def test_entries_that_were_not_looked_up_say_so():
    assert any("sibling" in note for note in load_model("minimax-m2").assumptions)
    assert any("recalled" in note for note in load_model("glm-4.5-air").assumptions)
    assert load_model("qwen3-32b").assumptions == ()


def test_a_catalogue_name_is_served_by_its_chat_model_and_an_id_by_itself() -> None:
    """The base model has no chat template: /v1/chat/completions refuses it."""
    for asked, served in (
        ("llama-3.1-70b", "meta-llama/Llama-3.1-70B-Instruct"), ("gemma-2-9b", "google/gemma-2-9b-it"),
        ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B"), ("qwen3-8b", "Qwen/Qwen3-8B"),
    ):  # fmt: skip
        assert f" {served} " in f"{tl.fit(asked, 'h200-sxm:2').command} "


def test_chat_models_are_among_the_ids_of_their_entry() -> None:
    assert all(entry.chat in entry.ids[1:] for entry in catalogue.entries().values() if entry.chat is not None)
