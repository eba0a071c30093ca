"""What a torchtitan run sets: keys ``section.key`` from the command line over a named configuration or a job file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trilemma.commands.option_words import read_options, real, truth, whole
from trilemma.engines.training import framework_facts
from trilemma.errors import InputError, UnknownName, shorten
from trilemma.outside_files import read_text

_SUBCOMMAND = re.compile(r"activation[-_]checkpoint:([a-z-]{1,40})")


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchtitanSettings:
    """Values by ``section.key`` with the catalogue's model; ``old`` for the job files of torchtitan 0.1 and 0.2.

    ``version``: a month that the words of an old file tell; ``notes`` is what was assumed.
    """

    model: str
    values: Mapping[str, Any]
    unknown: tuple[str, ...]
    named: str
    old: bool = False
    version: str | None = None
    notes: tuple[str, ...] = ()

    def whole(self, *keys: str, default: int, low: int = 1) -> int:
        for key in keys:
            if key in self.values:
                return whole(self.values[key], key, low=low)
        return default

    def real(self, key: str, *, default: float) -> float:
        return real(self.values[key], key) if key in self.values else default

    def on(self, *keys: str) -> bool:
        return any(key in self.values and truth(self.values[key], key) for key in keys)

    def text(self, *keys: str, default: str = "") -> str:
        return next((str(self.values[key]) for key in keys if key in self.values), default)


def settings_of(
    words: Sequence[str], environment: Mapping[str, str], *, started_by_script: bool = False
) -> TorchtitanSettings:
    """Settings of the words behind ``torchtitan.train``; run_train.sh passes MODULE and CONFIG as environment.

    Raises `InputError` for a configuration that is not known, `UnknownName` with near ones.
    """
    facts = framework_facts("torchtitan")
    switches = frozenset(
        (*facts["switches"], "activation_checkpoint.preserve_rng_state", "activation_checkpoint.debug")
    )
    keys = frozenset((*facts["keys"], *facts["old_keys"], *_AC_KEYS, "module", "config")) - switches
    negated = frozenset(".no_".join(switch.rsplit(".", 1)) for switch in switches)
    options = read_options(words, switches=switches | negated, values=keys, fold=True)
    subcommand = next((m.group(1) for word in options.positional if (m := _SUBCOMMAND.fullmatch(word))), None)
    given = {name: value for name, found in options.words.items() for name, value in [_flag(name, found, facts)]}
    if subcommand is not None:
        given["activation_checkpoint.mode"] = subcommand
    file = given.pop("job.config_file", None) or environment.get("CONFIG_FILE")
    if file is not None:
        return _job_file(str(file), given, facts)
    module = given.pop("module", None) or environment.get("MODULE")
    config = given.pop("config", None) or environment.get("CONFIG")
    if not module and not config and started_by_script:
        raise InputError(
            "run_train.sh without MODULE and CONFIG trains torchtitan's debug model; name them, such as MODULE=llama3"
            " CONFIG=llama3_8b ./run_train.sh"
        )
    if not module or not config:
        raise InputError("torchtitan needs --module and --config, such as --module llama3 --config llama3_8b")
    name = f"{str(module).rpartition('.')[2]}/{config}"
    if name not in facts["config"]:
        raise UnknownName("torchtitan configuration", name, facts["config"], hint="known: see docs/training.md")
    row = dict(facts["config"][name])
    known = {*facts["keys"], "activation_checkpoint.mode", *_AC_KEYS}
    unknown = tuple(f"--{key}" for key in given if key not in known)
    return TorchtitanSettings(model=row.pop("model"), values={**_registry(row), **given}, unknown=unknown, named=name)


#: Keys of the policies of recomputation, which hang on the chosen one.
_AC_KEYS = frozenset(
    f"activation_checkpoint.{key}"
    for key in (
        "preserve_rng_state",
        "determinism_check",
        "debug",
        "force_recompute_mm_shapes_by_fqns",
        "memory_budget",
    )
)


def _flag(name: str, words: tuple[str, ...], facts: Mapping[str, Any]) -> tuple[str, Any]:
    """``--section.no_key`` is the negation of a switch."""
    section, dot, key = name.rpartition(".")
    positive = f"{section}{dot}{key.removeprefix('no_')}"
    if key.startswith("no_") and positive in facts["switches"]:
        return positive, False
    return name, words[0] if words else True


def _registry(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the data file as keys of the command line."""
    places = {
        "seq_len": "training.seq_len", "local_batch_size": "training.local_batch_size",
        "activation_checkpoint": "activation_checkpoint.mode", "loss_chunks": "loss.num_chunks",
        "tensor_parallel_degree": "parallelism.tensor_parallel_degree",
        "expert_parallel_degree": "parallelism.expert_parallel_degree",
        "data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
        "pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
        "compile": "compile.components", "matmul": "model.matmul", "optimizer": "optimizer.name",
    }  # fmt: skip
    found = {places[key]: value for key, value in row.items()}
    if found.get("compile.components"):
        found["compile.enable"] = True
    return found


def _job_file(path: str, given: Mapping[str, Any], facts: Mapping[str, Any]) -> TorchtitanSettings:
    """A TOML job file of torchtitan 0.1 or 0.2, flags of the command over it."""
    shipped = facts["shipped"].get(PurePosixPath(path).name)
    notes: tuple[str, ...] = ()
    if shipped is not None and not Path(path).exists():
        found: Mapping[str, Any] = shipped
        notes = (f"{shorten(path)} is not here; taken as the one that torchtitan 0.2.2 came with",)
    else:
        try:
            found = dict(_leaves(tomllib.loads(read_text(Path(path)))))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{shorten(path)} is not readable TOML: {shorten(str(error))}") from error
    values = {**found, **given}
    name = f"{values.get('model.name')}/{values.get('model.flavor')}"
    if name not in facts["flavors"]:
        raise UnknownName("torchtitan model", name, facts["flavors"], hint="model.name/model.flavor of the job file")
    unknown = tuple(key for key in values if key not in facts["old_keys"] and key not in facts["keys"])
    return TorchtitanSettings(
        model=facts["flavors"][name], values=values, unknown=unknown, named=name, old=True, version=_dated(values, path, facts),
        notes=notes,
    )  # fmt: skip


def _dated(values: Mapping[str, Any], path: str, facts: Mapping[str, Any]) -> str | None:
    """The newest month whose releases knew every word of the file, and had it where ``path`` says; None where neither tells."""
    found = [str(row["version"]) for row in facts["dated_words"] if any(key in values for key in row["keys"])]
    folder = facts["dated_folders"].get(str(PurePosixPath(path).parent))
    return min([*found, *([str(folder)] if folder else [])], default=None)


def _leaves(document: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > 8:
        raise InputError("the job file nests deeper than 8 sections; give torchtitan's own")
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", value
