"""Flight-recorder dumps: the collective that is held up, and by whom.

The two cases carry the facts of NVIDIA/nvidia-resiliency-ext@d8686d9 tests/attribution/unit/fr_traces (gpu_error_1st,
lock_gil_1st), whose reference outputs name group 74, rank 12, and group 72, ranks 9 and 14.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from trilemma.ask.diagnosed import diagnose

EXPERTS, TENSORS = "EXPERT_MODEL_PARALLEL_GROUP", "TENSOR_MODEL_PARALLEL_GROUP"


def call(
    group: str, description: str, sequence: int, created: int, operation: str, sizes: list[int], **more: Any
) -> Any:
    return {
        "record_id": sequence, "pg_id": 5, "process_group": (group, description), "collective_seq_id": sequence,
        "p2p_seq_id": 0, "op_id": sequence, "profiling_name": operation, "time_created_ns": created,
        "input_sizes": [sizes], "input_dtypes": ["BFloat16"], "output_sizes": [sizes], "output_dtypes": ["BFloat16"],
        "state": "scheduled", "is_p2p": False, **more,
    }  # fmt: skip


def dump(groups: dict[str, tuple[str, list[int]]], entries: list[Any]) -> dict[str, Any]:
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {
            name: {"name": name, "desc": text, "ranks": str(ranks)} for name, (text, ranks) in groups.items()
        },
        "pg_status": {
            "5": {"last_enqueued_collective": 2, "last_started_collective": -1, "last_completed_collective": 1}
        },
        "entries": entries,
    }


def write(folder: Path, dumps: dict[int, dict[str, Any]], *, as_json: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, content in dumps.items():
        place = folder / f"_dump_{rank}{'.json' if as_json else ''}"
        place.write_bytes(json.dumps(content).encode() if as_json else pickle.dumps(content, protocol=2))
    return folder


def gpu_error() -> dict[int, dict[str, Any]]:
    """Rank 12 stops after 20536; 13 to 15 go on to 20538, 13 waits for it in the tensor group too, 4 ms later."""
    found = {}
    for rank in (12, 13, 14, 15):
        pair = [12, 13] if rank < 14 else [14, 15]
        name = "41" if rank < 14 else "42"
        entries = [call("74", EXPERTS, 20536, 924_000 + rank, "nccl:all_to_all", [4096, 5120])]
        if rank != 12:
            rows = {13: 4027, 14: 4007, 15: 4251}[rank]
            entries.append(call("74", EXPERTS, 20537, 925_585 + rank, "nccl:all_to_all", [rows, 5120]))
            entries.append(call("74", EXPERTS, 20538, 926_084 + rank, "nccl:all_to_all", [rows]))
            entries.append(call(name, TENSORS, 42818, 927_699, "nccl:_reduce_scatter_base", [8192, 1, 5120]))
        found[rank] = dump({"74": (EXPERTS, [12, 13, 14, 15]), name: (TENSORS, pair)}, entries)
    return found


def lock_gil() -> dict[int, dict[str, Any]]:
    """Ranks 9 and 14 write empty dumps."""
    found = {}
    for rank in range(8, 16):
        pair = [8, 9, 10, 11] if rank < 12 else [12, 13, 14, 15]
        name = "37" if rank < 12 else "38"
        entries = [
            call("72", EXPERTS, 45265, 547_929 + rank, "nccl:all_to_all", [2048, 5120]),
            call("72", EXPERTS, 45266, 548_008 + rank, "nccl:all_to_all", [2048]),
            call(name, TENSORS, 88684, 549_773 + rank, "nccl:_reduce_scatter_base", [8192, 1, 5120]),
        ]
        absent = rank in (9, 14)
        found[rank] = dump({"72": (EXPERTS, [*range(8, 16)]), name: (TENSORS, pair)}, [] if absent else entries)
    return found


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rank_that_stopped_is_named_in_the_collective_where_it_did(tmp_path: Path, as_json: bool) -> None:
    found = diagnose(write(tmp_path / "job", gpu_error(), as_json=as_json))
    root, *rest = found.findings
    assert (root.id, root.role, root.severity, root.confidence) == (
        "hang.missing-ranks", "root", "error", "established",
    )  # fmt: skip
    assert root.observed == "3 ranks; missing 12"
    assert "number 20537 of group 74" in root.claim
    assert "4027x5120 BFloat16" in root.evidence[0].value
    assert [one.role for one in rest] == ["cascade"]
    assert found.exit_code == 1
    told = {"74 EXPERT_MODEL_PARALLEL_GROUP nccl:all_to_all #20537": [12]}
    assert all(one.facts["missing_ranks"] == told for one in found.files)
    assert {one.kind for one in found.files} == {"nccl-flight-recorder"}


def test_ranks_with_empty_dumps_are_those_that_never_came(tmp_path: Path) -> None:
    found = diagnose(write(tmp_path / "job", lock_gil()))
    root = found.findings[0]
    assert root.observed == "6 ranks; missing 9, 14"
    assert found.files[0].facts["missing_ranks"] == {"72 EXPERT_MODEL_PARALLEL_GROUP nccl:all_to_all #45265": [9, 14]}
    assert [one.id for one in found.findings if one.severity != "context"] == ["hang.missing-ranks"]


def test_ranks_without_a_dump_are_asked_for_and_not_accused(tmp_path: Path) -> None:
    dumps = {rank: content for rank, content in lock_gil().items() if rank not in (14, 15)}
    found = diagnose(write(tmp_path / "job", dumps))
    assert found.findings[0].confidence == "supported"
    assert "missing 9" in (found.findings[0].observed or "")
    assert "14, 15" in found.missing[0]
    alone = diagnose(write(tmp_path / "one", {8: dumps[8]}))
    assert not alone.findings
    assert alone.missing


def test_a_job_that_ended_its_collectives_is_healthy(tmp_path: Path) -> None:
    dumps = lock_gil()
    for rank, content in dumps.items():
        content["entries"] = [{**one, "state": "completed"} for one in dumps[8]["entries"] if rank != 9]
    found = diagnose(write(tmp_path / "job", dumps))
    assert not found.findings
    assert found.exit_code == 0


def test_different_collectives_under_one_number_are_the_root(tmp_path: Path) -> None:
    group = {"0": ("default_pg", [0, 1])}
    dumps = {
        0: dump(group, [call("0", "default_pg", 7, 100, "nccl:all_reduce", [16])]),
        1: dump(group, [call("0", "default_pg", 7, 101, "nccl:broadcast", [16])]),
    }
    root = diagnose(write(tmp_path / "job", dumps)).findings[0]
    assert root.id == "hang.mismatched-collective"
    assert "nccl:broadcast on ranks 1" in root.claim


def test_all_in_and_none_out_is_a_symptom(tmp_path: Path) -> None:
    group = {"0": ("default_pg", [0, 1])}
    dumps = {rank: dump(group, [call("0", "default_pg", 7, 100, "nccl:all_reduce", [16])]) for rank in (0, 1)}
    found = diagnose(write(tmp_path / "job", dumps)).findings[0]
    assert (found.id, found.role, found.confidence) == ("hang.unfinished-collective", "symptom", "hypothesis")


def test_a_folder_is_a_job(tmp_path: Path) -> None:
    write(tmp_path / "one", gpu_error())
    write(tmp_path / "two", lock_gil())
    found = diagnose(tmp_path)
    assert [one.observed for one in found.findings if one.role == "root"] == [
        "3 ranks; missing 12", "6 ranks; missing 9, 14",
    ]  # fmt: skip
