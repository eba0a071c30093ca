"""Many runs: recipes × regimes × seeds over a few processes of one thread each."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib import metadata

from trilemma.errors import InputError, TrilemmaError
from trilemma.precision.lab.corpus import Corpus, generated_corpus, read_corpus
from trilemma.precision.lab.presets import LabJob
from trilemma.precision.lab.records import LabRun

_OLDEST_TORCH = (2, 6)

Progress = Callable[[int, int, LabRun], None]


def run_matrix(
    jobs: Sequence[LabJob],
    *,
    workers: int | None = None,
    text: str | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> list[LabRun]:
    """Every job's run, in the order of ``jobs``.

    ``workers``: processes (default: one per usable core, eight at most); 1 runs here. ``text``: a file to train on instead
    of the generated text. ``progress`` is called with (done, all, run). Raises `InputError` where PyTorch or the device is
    missing.
    """
    check_torch(device)
    if text is not None:
        read_corpus(text)
    count = min(workers or default_workers(), len(jobs)) if device == "cpu" else 1
    report = progress or _silent
    if count <= 1:
        return _run_here(jobs, text, device, report)
    context = multiprocessing.get_context("spawn")
    runs: dict[int, LabRun] = {}
    with ProcessPoolExecutor(count, mp_context=context, initializer=_prepare) as pool:
        # Recipes with many casts take longest; begun first, they leave no worker alone at the end.
        order = sorted(range(len(jobs)), key=lambda at: not jobs[at].recipe.directional)
        waiting = {pool.submit(_run_one, jobs[at], text, device): at for at in order}
        try:
            for future in as_completed(waiting):
                runs[waiting[future]] = future.result()
                report(len(runs), len(jobs), runs[waiting[future]])
        except BrokenProcessPool:
            raise TrilemmaError("a worker process of the lab ended; use --workers 1 to see why") from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [runs[at] for at in range(len(jobs))]


def default_workers() -> int:
    """Usable cores, eight at most."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8)


def check_torch(device: str) -> None:
    """Raise `InputError` where PyTorch with FP8 types or ``device`` is missing. Imports PyTorch only to look for a GPU."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise InputError("the training lab needs PyTorch; install it with: pip install 'trilemma[lab]'") from None
    numbers = version.partition("+")[0].split(".")[:2]
    if all(part.isdigit() for part in numbers) and tuple(int(part) for part in numbers) < _OLDEST_TORCH:
        raise InputError(f"PyTorch {version} is too old for the training lab; it needs 2.6 or newer")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("device 'cuda' is not there; use --device cpu")


def _silent(_done: int, _total: int, _run: LabRun) -> None:
    pass


def _run_here(jobs: Sequence[LabJob], text: str | None, device: str, report: Progress) -> list[LabRun]:
    import torch

    threads = torch.get_num_threads()
    _prepare()
    try:
        runs: list[LabRun] = []
        for job in jobs:
            runs.append(_run_one(job, text, device))
            report(len(runs), len(jobs), runs[-1])
        return runs
    finally:
        torch.set_num_threads(threads)


def _prepare() -> None:
    import torch

    # The matrices are small: more threads wait for each other, and sums would depend on their number.
    torch.set_num_threads(1)


def _run_one(job: LabJob, text: str | None, device: str) -> LabRun:
    from trilemma.precision.lab.train import train

    corpus: Corpus = generated_corpus() if text is None else read_corpus(text)
    return train(job.recipe, job.regime, seed=job.seed, corpus=corpus, device=device)
