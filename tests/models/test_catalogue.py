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


def test_small_models_of_public_reports_are_read_from_stated_fields_alone() -> None:
    """No field is taken as a default and none is left unread, by the entry's name and by its ids."""
    for asked in (
        "Qwen/Qwen3.5-0.8B", "Qwen/Qwen3.5-2B", "Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-9B", "HuggingFaceTB/SmolLM3-3B",
        "ibm-granite/granite-4.0-micro", "ibm-granite/granite-4.0-h-micro", "ibm-granite/granite-4.0-h-tiny",
        "ibm-granite/granite-4.0-h-small", "mistralai/Ministral-3-3B-Base-2512", "mistralai/Ministral-3-8B-Base-2512",
        "mistralai/Ministral-3-14B-Base-2512", "Qwen/Qwen1.5-7B-Chat", "Qwen/Qwen1.5-14B-Chat", "Qwen/Qwen1.5-32B-Chat",
        "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-32B-Instruct", "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        "XiaomiMiMo/MiMo-V2-Flash",
    ):  # fmt: skip
        assert load_model(asked).assumptions == (), asked


def test_later_models_of_one_geometry_are_its_entry() -> None:
    """Qwen3-Coder-Next stands on Qwen3-Next (79,674,391,296 parameters too), gpt-oss-safeguard on gpt-oss."""
    for asked, entry in (
        ("Qwen/Qwen3-Coder-Next", "qwen3-next-80b-a3b"),
        ("qwen3-coder-next", "qwen3-next-80b-a3b"),
        ("openai/gpt-oss-safeguard-20b", "gpt-oss-20b"),
    ):
        assert load_model(asked).source.startswith(f"catalogue {entry}")


def test_granite_of_attention_alone_needs_no_mamba_sizes() -> None:
    """granite-4.0-micro states 40 layers of attention and no state: 128 heads of Mamba are not assumed of it."""
    micro = load_model("granite-4.0-micro")
    assert not any("mamba" in note for note in micro.assumptions)
    assert count(micro).total == 3_402_836_480
