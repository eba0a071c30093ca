"""``trilemma precision train-lab``: a tiny transformer under many low-precision recipes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trilemma.cli.arguments import add_output_arguments, number, whole_number
from trilemma.cli.output import YES, screen_width, show
from trilemma.errors import InputError, shorten
from trilemma.outside_files import written

if TYPE_CHECKING:
    from trilemma.precision.lab.experiment import LabResult
    from trilemma.precision.lab.presets import Experiment
    from trilemma.precision.lab.records import LabRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", metavar="NAME", default="outliers", help="experiment to run (default: outliers)")
    parser.add_argument("--list", action="store_true", help="show presets and recipes, run nothing")
    parser.add_argument("--recipes", metavar="A,B", help="recipes instead of the preset's; BF16 is always there")
    parser.add_argument("--seeds", metavar="0,1,2", help="seeds instead of the preset's")
    parser.add_argument("--steps", metavar="N", type=whole_number, help="optimizer steps")
    parser.add_argument("--lr", metavar="X[,Y]", help="learning rates to try")
    parser.add_argument("--clip", metavar="X[,Y]", help="gradient norms to clip at; 1e9 does not clip")
    parser.add_argument("--outliers", metavar="X[,Y]", help="gains of the outlier channels; 1 has none")
    parser.add_argument("--probe-every", metavar="N", type=whole_number, help="steps between signals (default: 20)")
    parser.add_argument("--text", metavar="FILE", help="train on this text instead of the generated one")
    parser.add_argument(
        "--workers", metavar="N", type=whole_number, help="processes (default: one per core, 8 at most)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where to train (default: cpu)")
    parser.add_argument("--out", metavar="DIR", help="write lab.json, curves as PNG, report.html, losses as JSON lines")
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        return _list(as_json=arguments.json)
    from trilemma.precision.lab.experiment import run_experiment

    experiment = _experiment(arguments)
    if arguments.out:
        from trilemma.precision.lab.curves import check_plotting

        check_plotting()
        _make_folder(arguments.out)
    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers {arguments.workers} runs nothing; use 1 or more")
    result = run_experiment(
        experiment,
        workers=arguments.workers,
        text=arguments.text,
        device=arguments.device,
        progress=_show_progress if sys.stderr.isatty() else None,
    )
    if arguments.json:
        from trilemma.report.document import dumps

        print(dumps(result.to_json()))
    else:
        from trilemma.report.train_lab import explain_lab, render_lab

        show(render_lab(result, width=screen_width()))
        if arguments.explain:
            show("\n" + explain_lab(result, width=screen_width()))
    if arguments.out:
        _write(result, Path(arguments.out))
    return YES


def _list(*, as_json: bool) -> int:
    from trilemma.precision.lab.presets import PRESETS
    from trilemma.precision.lab.recipes import RECIPES
    from trilemma.report.train_lab import render_catalogue

    if as_json:
        presets = {one.name: {"says": one.says, "recipes": list(one.recipes)} for one in PRESETS.values()}
        recipes = {one.name: one.says for one in RECIPES.values()}
        document = {"schema": "trilemma/train-lab-list@1", "presets": presets, "recipes": recipes}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        show(render_catalogue(list(PRESETS.values()), list(RECIPES.values()), width=screen_width()))
    return YES


def _experiment(arguments: argparse.Namespace) -> Experiment:
    from dataclasses import replace

    from trilemma.precision.lab.presets import preset_named, sweep

    experiment = preset_named(arguments.preset)
    if arguments.recipes is not None:
        experiment = replace(experiment, recipes=tuple(_words(arguments.recipes)))
    if arguments.seeds is not None:
        experiment = replace(experiment, seeds=tuple(_seed(word) for word in _words(arguments.seeds)))
    return sweep(
        experiment,
        learning_rates=_numbers(arguments.lr, "--lr"),
        clip_norms=_numbers(arguments.clip, "--clip"),
        outlier_gains=_numbers(arguments.outliers, "--outliers"),
        steps=arguments.steps,
        probe_every=arguments.probe_every,
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _seed(word: str) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 10:
        raise InputError(f"seed {shorten(word)!r} is not a whole number; use such as --seeds 0,1,2")
    return int(word)


def _numbers(text: str | None, option: str) -> list[float]:
    if text is None:
        return []
    try:
        return [number(word) for word in _words(text)]
    except argparse.ArgumentTypeError as error:
        raise InputError(f"{option}: {error}") from None


def _show_progress(done: int, total: int, run: LabRun) -> None:
    end = "\n" if done == total else ""
    text = f"\r{done} of {total} runs ({run.recipe.name}, seed {run.seed}: {run.cpu_s:.1f} CPU-s)"
    print(f"{text:<78}", end=end, file=sys.stderr, flush=True)


def _make_folder(name: str) -> None:
    with written(name, what="--out", give="give another folder"):
        Path(name).mkdir(parents=True, exist_ok=True)


def _write(result: LabResult, folder: Path) -> None:
    from trilemma.precision.lab.curves import draw_curves
    from trilemma.report.document import dumps
    from trilemma.report.train_lab import lab_page

    pictures = [draw_curves(result, verdict) for verdict in result.verdicts]
    with written(folder, what="--out", give="give another folder"):
        for at, picture in enumerate(pictures):
            (folder / ("curves.png" if at == 0 else f"curves-{at + 1}.png")).write_bytes(picture)
        (folder / "report.html").write_text(lab_page(result, pictures), encoding="utf-8")
        (folder / "lab.json").write_text(dumps(result.to_json(full=True)), encoding="utf-8")
        _write_losses(result, folder)
    print(f"written: {folder}/curves.png, report.html, lab.json, loss-*.jsonl", file=sys.stderr)


def _write_losses(result: LabResult, folder: Path) -> None:
    """One file a recipe and regime, all seeds, in the form that ``precision gate`` reads."""
    for at, verdict in enumerate(result.verdicts):
        suffix = "" if len(result.verdicts) == 1 else f"-regime{at + 1}"
        for one in verdict.recipes:
            lines = [
                json.dumps({"seed": run.seed, "step": step, "loss": loss}) + "\n"
                for run in result.runs
                if run.recipe == one.recipe and run.regime == verdict.regime
                for step, loss in enumerate(run.losses)
            ]
            (folder / f"loss-{one.recipe.name}{suffix}.jsonl").write_text("".join(lines), encoding="utf-8")
