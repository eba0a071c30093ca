"""What a version has: releases by date, flags that came, went and were renamed, on a made-up engine; what offloading takes.

Rules: argparse refuses what it does not know; vllm's offloader takes parameters of layers in turn until the bytes are reached.
"""

from __future__ import annotations

from typing import Any

import pytest

from trilemma.commands.command_line import FlagSetting, FlagSettings
from trilemma.commands.flags import Flag, FlagTable
from trilemma.engines.in_force import name_at, put_in_force, uncounted
from trilemma.engines.offload import offloaded
from trilemma.engines.sglang.facts import for_version as sglang
from trilemma.engines.vllm.facts import FACTS
from trilemma.engines.vllm.facts import for_version as vllm
from trilemma.errors import InputError
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import GIB
from trilemma.versions import padded

V1, V2, V3, V4 = (padded((1, at)) for at in (1, 2, 3, 4))


def flag(name: str, kind: Any = "int", **more: Any) -> Flag:
    return Flag(**{"name": name, "kind": kind, "field": "extra", "since": V1, **more})


FLAGS = [
    flag("new-size"),
    flag("old-size", removed=V2, renamed_to="new-size"),
    flag("older-size", removed=V2, renamed_to="old-size"),
    flag("late", since=V3, absent_at=V2),
    flag("config", "json"),
    flag("depth", removed=V2, renamed_to="config.depth"),
    flag("mode", "text"),
    flag("fast", "switch", removed=V2, renamed_to="mode=quick"),
    flag("graphs", "toggle"),
    flag("no-graphs", "switch", removed=V2),
    flag("dropped", removed=V2, instead="mode"),
    flag("lost", removed=V2),
    flag("noted", note="say it otherwise"),
    flag("hidden", uncounted=True),
]
TABLE = FlagTable(
    engine="Made", flags={one.name: one for one in FLAGS}, shorts={}, versions=(V1, V2, V3, V4), source="made up"
)


def told(version: str | None, **given: Any) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """(values by name, warnings) of flags that are given, names with underscores."""
    names = {name.replace("_", "-"): value for name, value in given.items()}
    settings = FlagSettings(
        by_name={
            name: FlagSetting(flag=TABLE.flags[name], value=value, shown=f"--{name}") for name, value in names.items()
        }
    )
    warnings = put_in_force(settings, TABLE, version)
    return {name: one.value for name, one in settings.by_name.items()}, [(one.code, one.message) for one in warnings]


def test_a_renamed_flag_gives_its_value_to_the_new_name() -> None:
    values, warnings = told("1.3", old_size=4)
    assert values == {"new-size": 4}
    assert warnings == [(
        "removed-flag",
        "Made 1.3 has no --old-size (gone by 1.2.0) and would refuse it; use --new-size, which is given its value here",
    )]  # fmt: skip
    assert told("1.1", old_size=4) == ({"old-size": 4}, [])
    assert told("1.3", older_size=4)[0] == {"new-size": 4}
    assert told("1.3", old_size=4, new_size=5)[0] == {"new-size": 5}


def test_a_flag_becomes_a_key_of_a_configuration() -> None:
    assert told("1.3", depth=4)[0] == {"config": {"depth": 4}}
    assert told("1.3", depth=4, config={"width": 2})[0] == {"config": {"depth": 4, "width": 2}}
    assert told("1.3", depth=4, config={"depth": 2})[0] == {"config": {"depth": 2}}
    assert told("1.3", depth=4, config="text")[0] == {"config": "text"}
    assert "use depth of --config" in told("1.3", depth=4)[1][0][1]


def test_a_switch_becomes_a_word_of_another_flag() -> None:
    assert told("1.3", fast=True)[0] == {"mode": "quick"}
    assert told("1.3", fast=False)[0] == {}
    assert told("1.3", fast=True, mode="slow")[0] == {"mode": "slow"}
    assert told("1.3", fast=False, mode="slow")[0] == {"mode": "slow"}
    assert "use --mode quick" in told("1.3", fast=True)[1][0][1]


def test_a_negation_that_went_is_that_of_the_toggle() -> None:
    assert told("1.3", no_graphs=True) == ({"graphs": False}, [])
    assert told("1.3", no_graphs=False) == ({"graphs": True}, [])
    assert told("1.3", no_graphs=True, graphs=True) == ({"graphs": True}, [])
    assert told("1.1", no_graphs=True) == ({"no-graphs": True}, [])


def test_flags_that_nothing_replaces() -> None:
    (_, [(code, message)]) = told("1.3", dropped=1)
    assert (code, message.rpartition("; ")[2]) == ("removed-flag", "use --mode")
    (_, [(code, message)]) = told("1.3", lost=1)
    assert message.endswith("would refuse it; leave it out")


def test_flags_that_are_not_there_yet() -> None:
    (_, [(code, message)]) = told("1.2", late=1)
    assert (code, message) == (
        "newer-flag",
        "Made 1.2 has no --late yet (first seen in 1.3.0) and would refuse it",
    )
    assert told("1.3", late=1)[1] == []
    assert told(None, late=1) == ({"late": 1}, [])


def test_notes_are_of_the_newest_version_alone() -> None:
    assert told("1.4", noted=1)[1] == [("deprecated-flag", "--noted: say it otherwise")]
    assert told(None, noted=1)[1] == [("deprecated-flag", "--noted: say it otherwise")]
    assert told("1.3", noted=1)[1] == []


@pytest.mark.parametrize(
    ("name", "at", "today"),
    [
        ("old-size", V3, "new-size"), ("older-size", V3, "new-size"), ("new-size", V3, None), ("depth", V3,
         "config.depth"),
        ("fast", V3, "mode=quick"), ("lost", V3, None), ("late", V2, None),
    ],
)  # fmt: skip
def test_what_a_flag_is_called_today(name: str, at: Any, today: str | None) -> None:
    found = name_at(TABLE.flags[name], TABLE, at)
    # A flag that is still there is looked for under the name that will be its own.
    assert found == (today if name != "new-size" else None)


@pytest.mark.parametrize(
    ("words", "version", "code"),
    [("--new-sise", "1.3", "refused-flag"), ("--zzzzzzzzzz", "1.3", "refused-flag"), ("--zzzzzzzzzz", None, "unknown-flag"),
     ("--zzzzzzzzzz", "1.35", "unknown-flag")],
)  # fmt: skip
def test_words_that_no_flag_is(words: str, version: str | None, code: str) -> None:
    settings = FlagSettings(by_name={}, unknown=(words, words))
    warnings = put_in_force(settings, TABLE, version)
    assert [one.code for one in warnings] == [code]


def test_what_changes_memory_and_is_not_counted() -> None:
    assert [one.message for one in uncounted({"hidden": 3, "new-size": 2}, TABLE)] == [
        "--hidden: what this changes in memory is not counted yet"
    ]
    assert uncounted({"hidden": 0, "other": 3}, TABLE) == []


@pytest.mark.parametrize("at", range(0, 12, 3))
def test_a_release_is_out_from_its_day_on(at: int) -> None:
    rows = FACTS.data()["release"]
    day = str(rows[at]["date"])
    newest = [one for one in rows if str(one["date"]) <= day][-1]
    numbers = FACTS.release_of(day)
    assert ".".join(map(str, numbers)).startswith(str(newest["version"]))
    if at:
        year, month, number = map(int, day.split("-"))
        before = f"{year}-{month:02}-{number - 1:02}" if number > 1 else f"{year}-{month - 1:02}-28"
        assert FACTS.release_of(before) != numbers or str(rows[at - 1]["date"]) == day


def test_dates_before_all_releases_and_dates_that_are_none() -> None:
    assert ".".join(map(str, FACTS.release_of("2019-01-01"))).startswith(str(FACTS.data()["release"][0]["version"]))
    for text in ("2025-1-1", "25-01-01", "2025-01-01x", "tomorrow"):
        with pytest.raises(InputError, match="is not a date such as 2026-04-22"):
            FACTS.release_of(text)


def test_versions_older_and_newer_than_what_is_known() -> None:
    for reader, old, new, patch in ((vllm, "0.0.1", "9.0", "0.33.9"), (sglang, "0.1.0", "9.0.0", "0.5.23")):
        assert [one.code for one in reader(old).warnings] == ["older-engine"]
        assert not reader(old).known
        assert [one.code for one in reader(new).warnings] == ["newer-engine"]
        assert not reader(new).known
        assert reader(patch).warnings == ()
        assert reader(patch).known
        assert [one.code for one in reader(None).warnings] == ["assumed-engine-version"]
    fork = vllm("0.11.2.dev280 (fork build of 2025-06-20)")
    assert [one.code for one in fork.warnings] == ["fork-version"]
    assert fork.version == vllm(None, date="2025-06-20").version


def part(gib: float, layout: Layout | None = None, **more: Any) -> Any:
    options = ServeOptions(cpu_offload_bytes=int(gib * GIB))
    return offloaded(load_model("llama-3.1-8b"), layout or Layout(), options, batched_tokens=2048, **more)


def of_layers(*layers: int) -> set[str]:
    return {t.name for t in load_model("llama-3.1-8b").tensors if t.layer in layers and len(t.shape) > 1}


#: Bytes of the matrices of one layer of Llama 3.1 8B.
LAYER = 2 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)


def test_offloading_takes_layers_in_turn_until_the_bytes_are_reached() -> None:
    assert part(0) is None
    assert part(LAYER / GIB).tensors == of_layers(0)
    two = part((LAYER + 8) / GIB).tensors
    assert of_layers(0) < two < of_layers(0, 1)
    assert len(two) == len(of_layers(0)) + 1
    assert part(100).tensors == of_layers(*range(32))
    assert (part(1).read_by_card, part(1).copied_whole, part(1).micro_batch) == (True, False, 2048)
    assert part(1, copied_whole=True).copied_whole


def test_each_rank_offloads_its_own() -> None:
    assert part(LAYER / 2 / GIB, Layout(tp=2)).tensors == of_layers(0)
    assert part(LAYER / GIB, Layout(pp=2)).tensors == of_layers(0, 16)
    assert part(LAYER / GIB, Layout(pp=3)).tensors == of_layers(0, 11, 22)
    assert part(100, Layout(pp=3)).tensors == of_layers(*range(32))
