"""What people name is opened in one place, where what waits or never ends is refused (`trilemma.outside_files`)."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "trilemma"
#: Modules that open files by themselves, each one that it has seen to be a regular file, or one of the system's own.
OWN = {
    "engines/training.py", "machine/probes.py", "models/hub.py", "outside_files.py", "precision/weights_files.py",
}  # fmt: skip


def test_no_other_room_opens_what_people_name() -> None:
    opening = re.compile(r"""\bopen\([^)\n]*["']r?b["']""")
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if opening.search(path.read_text(encoding="utf-8"))
    }
    assert found == OWN
