"""Public names of the libraries that scripts import, as installed here: writes ``src/trilemma/data/lint/names.json``.

``python scripts/list_public_names.py`` imports the libraries below where they are installed and keeps what was listed before
of the others (their names are read from the ``__init__`` of the version that the file names). ``--earlier FOLDER`` takes an
earlier version of Transformers from there (``pip install --target FOLDER --no-deps transformers==4.57.3 …``) and keeps what it
had that the listed version has not: scripts that were written for it are not wrong.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import pkgutil
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "src" / "trilemma" / "data" / "lint" / "names.json"
#: Library → the modules whose names are kept, and those whose classes' keywords are kept too.
_TORCH = """
    amp autograd backends backends.cuda cuda cuda.amp distributed distributed.checkpoint distributed.fsdp distributed.pipelining
    distributed.tensor distributed.tensor.parallel fx nn nn.attention nn.functional nn.init nn.parallel nn.utils optim
    optim.lr_scheduler profiler utils utils.checkpoint utils.data
"""
MODULES = {
    "torch": ["torch", *(f"torch.{name}" for name in _TORCH.split())],
    "transformers": ["transformers"],
    "torchao": ["torchao", "torchao.float8", "torchao.quantization"],
    "accelerate": ["accelerate"],
}
_CALLS = "optim optim.lr_scheduler nn utils.data nn.parallel amp utils.checkpoint distributed.fsdp"
CALLS = [*(f"torch.{name}" for name in _CALLS.split()), "accelerate"]
TRANSFORMERS_CALLS = ("TrainingArguments", "Trainer", "Seq2SeqTrainingArguments", "DataCollatorForLanguageModeling")


def names_of(module: Any) -> list[str]:
    found = {name for name in dir(module) if not name.startswith("_")}
    with contextlib.suppress(AttributeError):
        found |= {one.name for one in pkgutil.iter_modules(module.__path__) if not one.name.startswith("_")}
    return sorted(found)


def keywords_of(call: Any) -> list[str] | None:
    """Its keywords; None where it takes any, or where nothing tells them."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters):
        return None
    return [one.name for one in parameters if one.name != "self"]


def listed(library: str) -> dict[str, Any]:
    modules: dict[str, str] = {}
    calls: dict[str, str] = {}
    for name in MODULES[library]:
        module = importlib.import_module(name)
        modules[name] = " ".join(names_of(module))
        wanted = names_of(module) if name in CALLS else TRANSFORMERS_CALLS if name == "transformers" else ()
        for one in wanted:
            found = getattr(module, one, None)
            if inspect.isclass(found) and (keywords := keywords_of(found)):
                calls[f"{name}.{one}"] = " ".join(keywords)
    return {"version": version(library).partition("+")[0], "modules": modules, "calls": calls}


def add_earlier(folder: str, known: dict[str, Any]) -> None:
    sys.path.insert(0, folder)
    today, before = known["libraries"]["transformers"], listed("transformers")
    names = {name: today["modules"][name].split() for name in today["modules"]}
    gone = {
        module: [one for one in words.split() if one not in names[module]]
        for module, words in before["modules"].items()
    }
    lost = {call: [one for one in words.split() if one not in today["calls"].get(call, "").split()]
            for call, words in before["calls"].items()}  # fmt: skip
    today["earlier"] = {
        "version": before["version"],
        "modules": {module: " ".join(words) for module, words in gone.items() if words},
        "calls": {call: " ".join(words) for call, words in lost.items() if words},
    }
    OUT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    warnings.simplefilter("ignore")
    if len(sys.argv) == 3 and sys.argv[1] == "--earlier":
        add_earlier(sys.argv[2], json.loads(OUT.read_text(encoding="utf-8")))
        return
    known = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {"libraries": {}}
    for library in MODULES:
        with contextlib.suppress(ImportError):
            earlier = known["libraries"].get(library, {}).get("earlier")
            known["libraries"][library] = listed(library) | ({"earlier": earlier} if earlier else {})
    known["source"] = (
        "dir() and signatures of the installed libraries (scripts/list_public_names.py); __init__ of the others"
    )
    OUT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
