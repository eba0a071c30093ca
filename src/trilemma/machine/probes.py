"""What this machine's own tools say, each asked once, all at the same time, bounded in time and size.

Nothing but the programs named here is run, without a shell. A tool that is not there is told as what cannot be seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: A tool that takes longer is given up: with a wedged driver nvidia-smi never returns.
PATIENCE_S = 8.0
_MOST_BYTES = 16 << 20

_QUERY = (
    "index,name,uuid,driver_version,memory.total,memory.free,power.limit,pcie.link.gen.max,pcie.link.width.current,"
    "pcie.link.width.max,mig.mode.current,ecc.errors.uncorrected.volatile.total"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What one tool printed: ``name`` is its command."""

    name: str
    content: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Unseen:
    """What could not be looked at, and why."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolsAsked:
    """What is to be seen and the tools that show it, the best first: the first that answers is enough."""

    what: str
    tools: tuple[tuple[str, ...], ...]


#: Enough to name the cards.
CARDS = (
    ToolsAsked(
        what="NVIDIA GPUs",
        tools=(("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv"), ("nvidia-smi",), ("nvidia-smi", "-L")),
    ),
    ToolsAsked(
        what="AMD GPUs",
        tools=(
            ("amd-smi", "static", "--asic", "--vram", "--json"),
            ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"),
        ),
    ),
    ToolsAsked(what="Ascend NPUs", tools=(("npu-smi", "info"),)),
    *(
        (ToolsAsked(what="chip and memory", tools=(("sysctl", "machdep.cpu.brand_string", "hw.memsize"),)),)
        if sys.platform == "darwin"
        else ()
    ),
)
#: What else is asked of a machine that is examined.
STATE = (
    ToolsAsked(what="errors, clocks and power of NVIDIA GPUs", tools=(("nvidia-smi", "-q", "-x"),)),
    ToolsAsked(what="paths between NVIDIA GPUs", tools=(("nvidia-smi", "topo", "-m"),)),
    ToolsAsked(what="NVLinks", tools=(("nvidia-smi", "nvlink", "--status"),)),
    ToolsAsked(what="state of AMD GPUs", tools=(("rocm-smi", "--showallinfo", "--json"),)),
)


def cards() -> tuple[tuple[Output, ...], tuple[Unseen, ...]]:
    """What the tools of this machine say of its cards and its memory."""
    return _asked(CARDS)


def everything() -> tuple[tuple[Output, ...], tuple[Unseen, ...]]:
    """The same with links, errors, clocks, limits of the container and versions of libraries."""
    outputs, unseen = _asked((*CARDS, *STATE))
    return (*outputs, limits(), versions()), unseen


def _asked(questions: Sequence[ToolsAsked]) -> tuple[tuple[Output, ...], tuple[Unseen, ...]]:
    started = [(one, _start(one.tools[0])) for one in questions]
    outputs, unseen = [memory()], []
    for question, running in started:
        found, why = _heard(running, question.tools[0])
        for tool in question.tools[1:] if found is None else ():
            found, later = _heard(_start(tool), tool)
            if found is not None:
                break
            why = later if running is None else why
        if found is not None:
            outputs.append(found)
        else:
            unseen.append(Unseen(what=question.what, why=why))
    return tuple(one for one in outputs if one.content), tuple(unseen)


def _start(tool: tuple[str, ...]) -> subprocess.Popen[bytes] | None:
    program = shutil.which(tool[0])
    if program is None:
        return None
    try:
        return subprocess.Popen(
            [program, *tool[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )  # fmt: skip
    except OSError:
        return None


def _heard(running: subprocess.Popen[bytes] | None, tool: tuple[str, ...]) -> tuple[Output | None, str]:
    if running is None:
        return None, f"{tool[0]} is not on this machine"
    try:
        content, _ = running.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
        return None, f"{tool[0]} did not answer in {PATIENCE_S:g} s"
    if running.returncode:
        said = content[:4000].decode("utf-8", errors="replace").strip().splitlines()
        return None, f"{tool[0]}: {said[-1][:160] if said else f'exit code {running.returncode}'}"
    return Output(name=" ".join(tool)[:60], content=content[:_MOST_BYTES]), ""


def memory() -> Output:
    """Memory of the host as Linux tells it; empty elsewhere."""
    return Output(name="/proc/meminfo", content=_file("/proc/meminfo"))


def limits() -> Output:
    """Limits of this process and container, in the words of ``ulimit -a`` and ``df``."""
    lines = []
    try:
        import resource

        for text, which, unit in (
            ("max locked memory (kbytes, -l)", resource.RLIMIT_MEMLOCK, 1024),
            ("open files (-n)", resource.RLIMIT_NOFILE, 1),
        ):
            soft, _ = resource.getrlimit(which)
            lines.append(f"{text} {'unlimited' if soft == resource.RLIM_INFINITY else soft // unit}")
        shm = os.statvfs("/dev/shm")
        lines.append(f"shm {shm.f_blocks * shm.f_frsize // 1024} 0 0 0% /dev/shm")
    except (ImportError, OSError):
        pass
    return Output(name="limits of this process", content="\n".join(lines).encode())


def versions() -> Output:
    """Engines and libraries installed beside this program, as ``pip freeze`` names them."""
    from importlib.metadata import distributions

    found: dict[str, str] = {}
    for one in distributions():
        name = one.metadata["Name"] if one.metadata is not None else None
        if name and len(found) < 5000:
            found[name.lower()] = one.version
    lines = [f"{name}=={version}" for name, version in sorted(found.items())]
    return Output(name="installed packages", content="\n".join(lines).encode())


def _file(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""
