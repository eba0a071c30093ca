"""A field that a configuration leaves out is what the library's own configuration class makes of it, or is asked for.

``published_defaults.json`` holds the defaults of Transformers' classes. Every field that a shipped configuration states is left
out alone: the model is then that of the default, or the reader refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from trilemma.errors import InputError
from trilemma.models import catalogue
from trilemma.models.architecture import Model
from trilemma.models.read import model_from_config

_HERE = Path(__file__).parent
_DEFAULTS: dict[str, dict[str, Any]] = json.loads((_HERE / "published_defaults.json").read_text(encoding="utf-8"))[
    "types"
]
_OTHERS: dict[str, Any] = json.loads((_HERE / "family_configs.json").read_text(encoding="utf-8"))["models"]
#: Fields whose absence says something else than the class does: a length that is not stated, layers that a checkpoint does
#: not hold, routing groups and windows that configurations leave out where they have none, tying that published models share.
_OTHERWISE = {
    "max_position_embeddings", "n_positions", "max_seq_len", "num_nextn_predict_layers", "n_group", "topk_group",
    "sliding_window", "tie_word_embeddings", "mamba_ssm_cache_dtype",
}  # fmt: skip
#: Fields of mixtures that a dense sibling of the same type has no use for.
_MIXTURES_ALONE = {("nemotron_h", "n_shared_experts"), ("nemotron_h", "moe_shared_expert_intermediate_size")}
#: Spelled otherwise in the same configuration (attention_head_dim).
_SPELLED = {("nemotron_h", "head_dim")}


def read(config: Mapping[str, Any]) -> Model:
    return model_from_config(config, name="test")


def attempt(config: Mapping[str, Any]) -> tuple[tuple[Any, ...] | None, str]:
    """The shape of the model, or why there is none."""
    try:
        return shape(read(config)), ""
    except InputError as error:
        return None, str(error)


def shape(model: Model) -> tuple[Any, ...]:
    """What a field may change: tensors, attention, experts, length."""
    return (
        [(tensor.name, tensor.shape, tensor.part) for tensor in model.tensors],
        model.mixers,
        [layer.ffn for layer in model.layers],
        model.max_positions,
        model.tied_embeddings,
    )


def cases() -> Iterator[tuple[str, dict[str, Any], str | None, str]]:
    """(type, configuration, section of the text part, field) of the first configuration of each type and field."""
    seen = set()
    configs = [*(catalogue.config(name) for name in catalogue.names()), *(row["config"] for row in _OTHERS.values())]
    for config in configs:
        for section in (None, "text_config"):
            part = config if section is None else config.get(section) or {}
            kind = part.get("model_type")
            for field in _DEFAULTS.get(kind, {}):
                if field in part and (kind, section, field) not in seen:
                    seen.add((kind, section, field))
                    yield kind, config, section, field


CASES = [one for one in cases() if (one[0], one[3]) not in _MIXTURES_ALONE | _SPELLED and one[3] not in _OTHERWISE]


def test_enough_fields_are_left_out() -> None:
    assert len(CASES) > 500
    assert len({kind for kind, *_ in CASES}) > 70


@pytest.mark.parametrize("kind", sorted({one[0] for one in CASES}))
def test_a_field_left_out_takes_the_published_default(kind: str) -> None:
    for _, config, section, field in (one for one in CASES if one[0] == kind):
        part = dict(config if section is None else config[section])
        stated = dict(part)
        del part[field]
        stated[field] = _DEFAULTS[kind][field]
        without, default = (one if section is None else {**config, section: one} for one in (part, stated))
        found, refusal = attempt(without)
        assert found == attempt(default)[0] or re.search("is missing|give", refusal), field


def test_a_default_that_decides_a_size_is_told() -> None:
    config = {key: value for key, value in catalogue.config("minimax-m2").items() if key != "num_key_value_heads"}
    model = read(config)
    assert "num_key_value_heads is not given; taken as 8, the default of minimax_m2" in model.assumptions
    none = read({**catalogue.config("deepseek-v3"), "q_lora_rank": None})
    assert not any(tensor.role == "mla.q_a" for tensor in none.tensors)
