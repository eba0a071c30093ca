"""The JSON contract: schemas equal the types, real documents obey the schemas, numbers stay finite."""

from __future__ import annotations

import json

import jsonschema
import pytest

from trilemma.cli.main import main
from trilemma.report.document import dumps
from trilemma.report.schemas import DOCUMENTS, SCHEMAS, schema_of


@pytest.mark.parametrize("name", DOCUMENTS)
def test_shipped_schema_is_the_one_generated_from_the_types(name: str) -> None:
    assert json.loads((SCHEMAS / f"{name}.schema.json").read_text()) == schema_of(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--isl", "1000", "--osl", "200"], 0),
        (["fit", "llama-3.1-70b", "--gpu", "rtx-4090"], 1),
        (["fit", "deepseek-v3", "--gpu", "h200-sxm:8", "--isl", "4096", "--osl", "1024", "--explain"], 0),
    ],
)
def test_fit_prints_one_document_that_obeys_its_schema(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema_of("estimate"))
    assert document["fits"] is (code == 0)
    items = document["memory"]["items"]
    assert items[0]["name"] == "weights"
    assert abs(sum(item["bytes"] for item in items) - document["memory"]["total_bytes"]) <= len(items)


def test_json_text_is_strict() -> None:
    assert json.loads(dumps({"value": float("inf")})) == {"value": "inf"}
