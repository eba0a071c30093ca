"""What a release has beside it: a bill of materials from the wheel's own metadata, and two wheels told apart."""

from __future__ import annotations

import importlib
import json
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
METADATA = """\
Metadata-Version: 2.4
Name: Trilemma
Version: 0.1.0
License-Expression: Apache-2.0
Requires-Dist: numpy>=1.26
Requires-Dist: PyYAML>=6.0
Provides-Extra: web
Requires-Dist: fastapi>=0.115; extra == 'web'
Requires-Dist: trilemma[charts]; extra == 'web'
Provides-Extra: fuzz
Requires-Dist: atheris>=3.0; (sys_platform == 'linux') and extra == 'fuzz'
"""


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "release"))
    return importlib.import_module(name)


def wheel(folder: Path, **files: str) -> Path:
    path = folder / "trilemma-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("trilemma-0.1.0.dist-info/METADATA", METADATA)
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_the_bill_of_materials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cyclonedx")
    text = script("sbom", monkeypatch).sbom(wheel(tmp_path))
    found = json.loads(text)
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/trilemma@0.1.0"
    assert found["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
    told = {one["name"]: (one["scope"], one["properties"]) for one in found["components"]}
    assert told == {
        "numpy": ("required", [{"name": "trilemma:always", "value": ">=1.26"}]),
        "pyyaml": ("required", [{"name": "trilemma:always", "value": ">=6.0"}]),
        "fastapi": ("optional", [{"name": "trilemma:extra:web", "value": ">=0.115"}]),
        "atheris": ("optional", [{"name": "trilemma:extra:fuzz", "value": ">=3.0"}]),
    }
    assert text == script("sbom", monkeypatch).sbom(wheel(tmp_path))


def test_the_bill_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jsonschema")
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = importlib.import_module("cyclonedx.schema")
    text = script("sbom", monkeypatch).sbom(wheel(tmp_path))
    try:
        assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text) is None
    except importlib.import_module("cyclonedx.exception").MissingOptionalDependencyException:
        pytest.skip("cyclonedx-python-lib without json-validation")


def test_wheels_that_differ_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").mkdir()
    check = script("check", monkeypatch)
    one, other = wheel(tmp_path, a="1", b="2"), wheel(tmp_path / "b", a="1", b="3", c="4")
    assert check.different(one, one) == []
    assert check.different(one, other) == ["b", "c"]


def test_what_ships_is_within_its_size() -> None:
    """The wheel holds the package alone, compressed to less than half: 10 MB are never reached by 20 of files."""
    files = [path for path in (ROOT / "src" / "trilemma").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < 20e6
