"""Traces of others and hostile ones."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest

from trilemma.errors import InputError
from trilemma.simulation.serving.traces import read_trace


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_format_of_azure(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    first, second = read_trace(write(tmp_path, text))
    assert (first.arrival_s, first.isl, first.osl) == (0.0, 4808, 10)
    assert second.arrival_s == pytest.approx(0.052, abs=1e-6)


def test_the_format_of_mooncake(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 3052, "input_length": 1100, "output_length": 7, "hash_ids": [0, 2, 3]},
    ]
    path = tmp_path / "m.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    _, second = read_trace(path)
    assert second.arrival_s == pytest.approx(3.052)  # milliseconds
    assert second.stretches == (0, 2, 3)
    assert second.stretch_tokens == 512


def test_logs_of_requests_and_burstgpt(tmp_path: Path) -> None:
    log = '{"request_id": "a", "input_toks": 10, "output_toks": 2, "arrival_time": 1787267980.08}\n'
    assert next(read_trace(write(tmp_path, log, "r.jsonl"))).isl == 10
    burst = "Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,18\n45,ChatGPT,1087,230\n"
    assert [one.arrival_s for one in read_trace(write(tmp_path, burst))] == [0.0, 40.0]


def test_cut_in_time_and_number(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival,input,output\n" + "".join(f"{at},5,5\n" for at in range(100)))
    assert [one.arrival_s for one in read_trace(path, begin_s=10, span_s=3)] == [0.0, 1.0, 2.0]
    assert len(list(read_trace(path, most=7))) == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival,input,output\n0,5,5\n-1,5,5\n", "line 3"),
        ("arrival,input,output\n0,5,5\nnan,5,5\n", "line 3: arrival 'nan' is not a time"),
        ("arrival,input,output\n0,5,5\ninf,5,5\n", "line 3"),
        ("arrival,input,output\n3,5,5\n2,5,5\n", "line 3: it arrives 1 s before the line above; sort"),
        ("arrival,input,output\n0,0,5\n", "line 2: input '0' is not a whole number of tokens from 1; drop"),
        ("arrival,input,output\n0,5,0\n", "line 2: output"),
        ("arrival,input,output\n0,5.5,2\n", "line 2: input"),
        ("arrival,input,output\n0,1e300,2\n", "line 2: input"),
        ("arrival,input,output\n0,5\n", "line 2: 2 cells under 3 columns"),
        ("when,input,output\n0,5,5\n", "no column for the arrival"),
        ("arrival,input,output\n", "holds no request"),
        ("", "holds no request"),
        ('{"arrival": 0, "input": 5, "output": 5}\n{"arrival": 1, "input": 5', "line 2"),
        ('{"arrival": 0, "input": 5, "output": 5}\n[1]\n', "line 2"),
        ('{"arrival": 0, "input": 5, "output": 5, "hash_ids": {"a": 1}}\n', "line 1: hash_ids"),
        ('{"arrival": 0, "input": 5, "output": 5, "x": "' + "y" * 2**20 + '"}\n', "line 1: it is longer than"),
    ],
)
def test_what_cannot_be_names_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=r".") as told:
        list(read_trace(write(tmp_path, text)))
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_bytes(b"arrival,input,output\n0,5,5\n\xff\xfe\x00,1,1\n")
    for bad in (path, tmp_path / "none.csv", tmp_path):
        with pytest.raises(InputError):
            list(read_trace(bad))


def test_a_trace_is_read_as_it_is_asked_for(tmp_path: Path) -> None:
    """The line that is bad is never reached: nothing is read ahead of what is taken."""
    path = write(tmp_path, "arrival,input,output\n" + "0,5,5\n" * 100_000 + "bad,5,5\n")
    assert len(list(itertools.islice(read_trace(path), 50_000))) == 50_000
