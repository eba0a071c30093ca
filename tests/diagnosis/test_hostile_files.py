"""Files from outside that mean harm or are damaged: nothing runs, memory stays bounded, every one is told."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import pickletools
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trilemma.ask.diagnosed import diagnose
from trilemma.cli.main import main
from trilemma.diagnosis.readers import every_reader
from trilemma.diagnosis.rules import rules
from trilemma.errors import InputError
from trilemma.report.schemas import schema_of

RAN: list[str] = []
LINES = sorted({mark for reader in every_reader() for mark in reader.marks})


class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def one(tmp_path: Path, content: bytes) -> Any:
    path = tmp_path / "file"
    path.write_bytes(content)
    return diagnose(path)


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
def test_a_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    found = one(tmp_path, pickle.dumps({"entries": [Harm()], "pg_config": {}}, protocol=protocol))
    assert not (tmp_path / "ran").exists()
    if protocol:
        assert found.files[0].unreadable
        assert found.exit_code == 2


def _opcode(name: str) -> bytes:
    return next(code.code.encode("latin-1") for code in pickletools.opcodes if code.name == name)


@pytest.mark.parametrize("name", [
    "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "PERSID", "BINPERSID",
    "BYTEARRAY8", "NEXT_BUFFER", "EMPTY_SET", "FROZENSET",
])  # fmt: skip
def test_opcodes_that_make_objects_are_unknown(tmp_path: Path, name: str) -> None:
    body = b"\x80\x05(lp0\n" + _opcode(name) + b"\x02\0\0\0\0\0\0\0os\nsystem\n" + b"."
    found = one(tmp_path, body)
    assert found.files[0].unreadable, found.files[0].facts


def test_pickles_that_ask_for_memory_or_time(tmp_path: Path) -> None:
    nested = b"\x80\x04)" + b"".join(b"\x94h" + bytes([at]) + b"h" + bytes([at]) + b"\x86" for at in range(60))
    huge_string = b"\x80\x05\x8d" + (1 << 40).to_bytes(8, "little") + b"x."
    huge_memo = b"\x80\x02]r\xff\xff\xff\x7f."
    tracemalloc.start()
    before = time.process_time()
    for body in (huge_string, huge_memo, nested + b".", b"\x80\x04}" + nested[2:] + b"K\x01s."):
        one(tmp_path, body)
    assert time.process_time() - before < 5
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_a_gzip_bomb_of_nothing_stops_at_its_head(tmp_path: Path) -> None:
    found = one(tmp_path, gzip.compress(bytes(200 << 20), 9))
    assert found.files[0].unreadable
    assert found.exit_code == 2


def test_a_bomb_of_lines_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trilemma.diagnosis.sources.MOST_UNPACKED", 8 << 20)
    (tmp_path / "bomb").write_bytes(gzip.compress(b"a" * (32 << 20), 9))
    tracemalloc.start()
    found = diagnose(tmp_path / "bomb")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert "unpacks" in found.files[0].facts["incomplete"]


@pytest.mark.parametrize("content", [
    b'{"a": ' * 100_000, b"[" * 1_000_000, b'{"traceEvents": [' + b'{"ph": [' * 50_000, b'[{"ph": "X"', b"[{,", b'{"a" 1}',
    b"{", b"[", b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1e999, "dur": NaN}]}', b'{"a": ' + b"9" * 10_000 + b"}",
    b"\x80\x04", b"\x80\x04.", b"\x1f\x8b\x08", b"\x1f\x8b\xff\xff\xff", b"<?xml", b"<?xml version='1.0'?><a><b></a>",
    b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'cc'>]><a>&b;</a>", b"\xff\xfeN\0V\0", b"\x00\x01\x02" * 1000,
    b"\xc3\x28" * 99,
])  # fmt: skip
def test_damaged_files_are_told(tmp_path: Path, content: bytes) -> None:
    found = one(tmp_path, content)
    assert found.exit_code in (0, 2)
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    lost = b"NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
    (tmp_path / "long").write_bytes(b"NVRM: Xid " + b"x" * (64 << 20) + b"\n" + lost)
    tracemalloc.start()
    found = diagnose(tmp_path / "long")
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    assert [finding.evidence[0].line for finding in found.findings] == [2]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=200).map(lambda noise: b"\x80\x04" + noise),
    st.binary(max_size=200).map(lambda noise: gzip.compress(noise)[:-3]),
    st.lists(st.tuples(st.sampled_from(LINES), st.text(max_size=60)), max_size=8).map(
        lambda rows: "\n".join(mark + rest for mark, rest in rows).encode("utf-8", "surrogatepass")),
))  # fmt: skip
def test_noise_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    json.dumps(one(tmp_path, content).to_dict(), allow_nan=False)


REST = st.one_of(st.text(max_size=60), st.sampled_from((
    " 12.5 GiB", ": 3, pid=7, name=python, text", " 100 tokens/s, Running: 8 reqs", "=('--a=1' '--b')", " (7/16) [1.0, nan]",
    "99999999999999999999", ": nan", "inf%|#| 1/2 [00:01<00:01, 1e9s/it]", " | 0/0 [", "JobID|State|", "\x1b[31m",
)))  # fmt: skip


@pytest.mark.parametrize("reader", [one for one in every_reader() if one.form == "lines"], ids=lambda one: one.kind)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_each_reader_takes_what_stands_behind_its_marks(tmp_path: Path, reader: Any, data: st.DataObject) -> None:
    """Lines of one reader's marks with anything behind them, broken anywhere."""
    marks = sorted({*reader.own, *reader.marks})
    rows = data.draw(st.lists(st.tuples(st.sampled_from(marks), REST), min_size=1, max_size=12))
    content = "\n".join(mark + rest for mark, rest in rows).encode("utf-8", "surrogatepass")
    cut = data.draw(st.integers(0, len(content)))
    json.dumps(
        one(tmp_path, content[:cut] + data.draw(st.binary(max_size=8)) + content[cut:]).to_dict(), allow_nan=False
    )


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak of a process there")
def test_a_log_through_a_pipe_is_read_in_little_memory() -> None:
    """16 MiB of steps, requests, faults and noise take 60 MiB, 48 of the same 67; two gibibytes no more."""
    rows = b"".join(
        b" iteration %d/ 9 | elapsed time per iteration (ms): 905.1 | lm loss: 2.5 |\n[%d] NVRM: Xid (PCI:0000:9b:00): 31, "
        b"pid=%d, name=python, Ch 8\n%s\nAug 30 11:11:22 node7 kernel: usb 1-2: new device %d\n"
        % (at, at, at, b"x" * 300, at)
        for at in range(20_000)
    )
    program = (
        "import sys; from trilemma.cli.main import main; code = main(['diagnose', '-']);"
        "high = next(row for row in open('/proc/self/status') if row.startswith('VmHWM'));"
        "print(int(high.split()[1]) // 1024, file=sys.stderr); sys.exit(code)"
    )
    log = (rows * 2)[: 16 * 2**20]
    told = subprocess.run([sys.executable, "-c", program], input=log, capture_output=True, check=False)
    assert told.returncode == 1
    assert int(told.stderr.split()[-1]) < 110
    assert b"Xid 31" in told.stdout


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from([
    "entries", "pg_config", "pg_status", "traceEvents", "ph", "cat", "ts", "dur", "args", "name", "collective_seq_id",
    "process_group", "time_created_ns", "input_sizes", "deviceProperties", "distributedInfo", "segments", "device_traces",
    "blocks", "state", "size", "action", "meta", "Slurm", "jobs", "nodes", "job_state", "header", "coll_perf", "n_ranks",
])  # fmt: skip
documents = st.dictionaries(
    fields, st.lists(st.dictionaries(fields, values, max_size=6), max_size=4) | values, max_size=5
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents, st.booleans())
def test_documents_of_known_keys_and_any_values(tmp_path: Path, document: Any, pickled: bool) -> None:
    content = pickle.dumps(document, protocol=4) if pickled else json.dumps(document).encode()
    json.dumps(one(tmp_path, content).to_dict(), allow_nan=False)


def test_a_file_that_is_not_there_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        diagnose(tmp_path / "nothing")
    with pytest.raises(InputError, match="no file in"):
        diagnose(tmp_path)
    with pytest.raises(InputError, match="nothing to diagnose"):
        diagnose([])


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    well, ill, junk = tmp_path / "well.log", tmp_path / "ill.log", tmp_path / "junk"
    well.write_text("NVRM: GPU at PCI:0000:9b:00: GPU-5096\n")
    ill.write_text("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n")
    junk.write_bytes(b"\0\1\2")
    assert [main(["diagnose", str(one)]) for one in (well, ill, junk)] == [0, 1, 2]
    assert main(["diagnose", "--json", str(ill)]) == 1
    jsonschema.validate(json.loads(capsys.readouterr().out.partition("\n{")[2].join(("{", ""))), schema_of("findings"))
    assert main(["diagnose", str(well), str(junk)]) == 2
    assert main(["diagnose", str(tmp_path)]) == 1
    ill.unlink()
    assert main(["diagnose", str(tmp_path)]) == 0  # a folder may hold files of other kinds
    capsys.readouterr()
    assert main(["diagnose", "--json", str(well)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "trilemma/findings@1"
    jsonschema.validate(document, schema_of("findings"))
    assert document["files"] == [
        {
            "file": str(well),
            "kind": "kernel-log",
            "facts": {"xid_events": 0, "xid_lines": 0, "sxid_events": 0, "sxid_lines": 0},
        }
    ]
    assert (document["findings"], document["missing_inputs"]) == ([], [])


def test_every_module_is_registered_and_every_rule_needs_a_kind_that_is_read() -> None:
    kinds = {reader.kind for reader in every_reader()}
    assert len(kinds) == len(every_reader())
    assert all(rule.needs and set(rule.needs) <= kinds for rule in rules())
