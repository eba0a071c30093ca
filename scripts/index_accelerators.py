"""Make ``data/accelerators/index.json`` again, after an accelerator was added or its names changed."""

from __future__ import annotations

from trilemma.data.digest import DATA
from trilemma.data.files import table_text
from trilemma.hardware.catalogue import head_of


def index() -> str:
    """The head of every accelerator file by id, one a line."""
    folder = DATA / "accelerators"
    return table_text({path.stem: head_of(path) for path in sorted(folder.glob("*.toml"))})


if __name__ == "__main__":
    (DATA / "accelerators" / "index.json").write_text(index(), encoding="utf-8")
