"""Accelerator files from outside: strict, bounded, and refused in one line that names file and key."""

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trilemma.errors import InputError
from trilemma.hardware import find, find_measured, parse_gpu_argument
from trilemma.hardware.reader import MAX_FILE_BYTES, parse_accelerator, read_accelerator

GOOD = """
name = "Test Card"
vendor = "Example"
architecture = "Test"
label_gb = 16
hardware_formats = ["bf16"]

[memory]
type = "GDDR6"
bandwidth_bytes_per_s = { value = 0.5e12, source = "datasheet" }

[peak_flops]
bf16 = { value = 100e12, source = "datasheet", as_of = 2026-01-02 }
"""


def parse(text: str):
    return parse_accelerator(text, name="test-card", where="test-card.toml")


def test_the_least_file_is_enough():
    card = parse(GOOD)
    assert card.id == "test-card"
    assert card.peak("bf16").value == 100e12
    assert card.peak_flops["bf16"].as_of == "2026-01-02"
    assert card.peak("fp8") is None
    assert card.link is None
    assert card.runtime_total().low < card.runtime_total().value


def test_a_file_works_wherever_a_name_does(tmp_path: Path):
    path = tmp_path / "my-card.toml"
    path.write_text(GOOD)
    assert find(str(path)).id == "my-card"
    accelerator, count = parse_gpu_argument(f"{path}:4")
    assert (accelerator.id, count) == ("my-card", 4)
    assert find_measured(str(path))[0].id == "my-card"


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"nowhere\.toml"):
        find(str(tmp_path / "nowhere.toml"))
    with pytest.raises(InputError):
        find(str(tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "Test Card"', "", "name is missing"),
        ("[memory]", "[memories]", "memor"),
        ("label_gb = 16", "label_gb = -16", "label_gb -16 is out of range"),
        ("label_gb = 16", "label_gb = nan", "label_gb nan is not a number"),
        ("label_gb = 16", "label_gb = true", "label_gb"),
        ("label_gb = 16", 'label_gb = "16"', "label_gb"),
        ("label_gb = 16", "label_gb = 1e400", "label_gb"),
        ("value = 0.5e12", "value = inf", "memory.bandwidth_bytes_per_s inf is not a number"),
        ("value = 0.5e12", "value = 0", "memory.bandwidth_bytes_per_s"),
        ("value = 0.5e12", "value = 500", "memory.bandwidth_bytes_per_s"),
        ('bandwidth_bytes_per_s = { value = 0.5e12, source = "datasheet" }', "bandwidth_bytes_per_s = 0.5e12", "is not a figure"),
        ('source = "datasheet", as_of', "as_of", "source is missing"),
        ('source = "datasheet", as_of', 'source = "", as_of', "source"),
        ("bf16 = {", "bf17 = {", "bf17 is not a known format"),
        ('["bf16"]', '["bf16", "fp8"]', "fp8 is in hardware_formats"),
        ('["bf16"]', '["quux"]', "quux"),
        ("[peak_flops]", "[peak_flops]\nfp8 = { value = -1, source = 'x' }", "fp8"),
        ("[memory]", "surprise = 1\n[memory]", "surprise is not a known key"),
        ("[memory]", "[memory]\nnvml_total_mib = { value = 90000, source = 'x' }", "contradicts label_gb"),
        ("[memory]", "[memory]\nruntime_total_bytes = { value = 16, source = 'x' }", "runtime_total_bytes"),
        ("[peak_flops]", "[pcie]\ngeneration = { value = 9, source = 'x' }\n[peak_flops]", "generation"),
        ("[peak_flops]", "[node]\ngpus = 0\n[peak_flops]", "node.gpus"),
        ("[peak_flops]", "[node]\ngpus = 2.5\n[peak_flops]", "whole number"),
        ("[peak_flops]", "[price]\nusd_per_hour_low = 3\nusd_per_hour_high = 1\n[peak_flops]", "usd_per_hour_low"),
        ("[peak_flops]", "[sparse_peak_flops]\nbf16 = { value = 50e12, source = 'x' }\n[peak_flops]", "dense"),
        ("[peak_flops]", "link = 5\n[peak_flops]", "link"),
        ("[peak_flops]", "[[", "not valid TOML"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_key(old: str, new: str, says: str):
    assert old in GOOD
    with pytest.raises(InputError) as error:
        parse(GOOD.replace(old, new, 1))
    assert says in str(error.value)
    assert "test-card.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_totals_that_contradict_are_refused():
    both = "[memory]\nnvml_total_mib = { value = 16000, source = 'x' }\nruntime_total_bytes = { value = 17e9, source = 'x' }"
    with pytest.raises(InputError, match="exceeds"):
        parse(GOOD.replace("[memory]", both))


HOSTILE = {
    "empty": b"",
    "not-utf8": b"\xff\xfe\x00",
    "zeros": b"\x00" * 100,
    "nested": b"x = " + b"[" * 50_000,
    "huge-number": b"x = " + b"9" * 60_000,
    "dotted": b"a." * 30_000 + b"b = 1",
    "dotted-quoted": b'"a" . ' * 10_000 + b"b = 1",
    "dotted-header": b"[" + b"a." * 30_000 + b"b]",
    "dotted-inline": b"x = {" + b"a." * 30_000 + b"b = 1}",
    "long-keys": (b"k" * 60 + b".") * 20 + b"b = 1\n" + (b"q" * 80 + b".") * 700 + b"b = 1",
    "one-long-word": b"a" * 60_000,
    "many-tables": b"".join(b"[t%d]\n" % number for number in range(6000)),
    "many-arrays": b"[[t]]\n" * 9000,
    "long-text": b'x = "' + b"A" * 60_000 + b'"',
    "too-large": b"#" * (MAX_FILE_BYTES + 1),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_are_refused_quickly(tmp_path: Path, content: bytes):
    path = tmp_path / "hostile.toml"
    path.write_bytes(content)
    begun = time.process_time()
    with pytest.raises(InputError) as error:
        read_accelerator(path)
    assert time.process_time() - begun < 3
    assert len(str(error.value)) < 500
    assert "\n" not in str(error.value)


def test_an_endless_file_is_not_read_to_its_end():
    endless = Path("/dev/zero")
    if endless.exists():
        with pytest.raises(InputError, match="larger than"):
            read_accelerator(endless)


LINES = st.sampled_from(GOOD.splitlines())
JUNK = st.text(alphabet=st.characters(codec="utf-8"), max_size=30)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(LINES, JUNK), max_size=25))
def test_shuffled_and_broken_files_never_crash(lines: list[str]):
    with contextlib.suppress(InputError):
        assert parse("\n".join(lines)).bandwidth_bytes_per_s.value > 0


VALUES = st.one_of(st.floats(), st.integers(), st.booleans(), st.text(max_size=10), st.lists(st.integers(), max_size=3))


@settings(max_examples=150)
@given(st.sampled_from(["16", "0.5e12", "100e12", '"GDDR6"', '["bf16"]', '"Test Card"']), VALUES)
def test_any_value_in_any_place_never_crashes(place: str, value: object):
    written = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    text = GOOD.replace(place, written or repr(value).replace("'", '"'), 1)
    with contextlib.suppress(InputError):
        card = parse(text)
        assert 0 < card.label_gb < 1e6
        assert card.runtime_total().value > 0
