"""What the report of a training lab says of made-up verdicts, cell by cell: no PyTorch needed."""

from __future__ import annotations

import base64
import html
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from trilemma.precision.lab.alarms import Alarm, Thresholds
from trilemma.precision.lab.experiment import LabResult
from trilemma.precision.lab.presets import PRESETS, Experiment
from trilemma.precision.lab.recipes import RECIPES
from trilemma.precision.lab.records import LabRun, Regime
from trilemma.precision.lab.verdict import Mitigation, RecipeVerdict, RegimeVerdict, WarningRank
from trilemma.report.train_lab import explain_lab, lab_page, render_catalogue, render_lab

ALARM = Alarm(step=7, signal="underflows", where="head g", value=12.0, bound=5.0)


def verdict(name: str, outcome: Any, **more: Any) -> RecipeVerdict:
    plain: dict[str, Any] = {
        "final_loss": 2.5, "gap": 0.25, "noise": 0.125, "since_step": None, "stops": {}, "seeds": 3, "alarm": None,
        "warning": 0.375, "low_precision_share": 0.75,
    }  # fmt: skip
    return RecipeVerdict(recipe=RECIPES[name], outcome=outcome, **{**plain, **more})


BF16 = verdict("bf16", "reference", final_loss=2.25, gap=0.0, low_precision_share=0.0)
NAIVE = verdict("naive", "blown up", gap=4.5, since_step=31, alarm=ALARM)
CURRENT = verdict("current", "as good", gap=-0.0625)
KEPT = verdict("naive-head-kept", "worse", gap=0.5)
STOPPED = verdict("delayed-nan", "stopped", gap=math.nan, final_loss=math.nan, stops={0: 9, 1: 4}, since_step=4)


def result(
    recipes: tuple[RecipeVerdict, ...], *, mitigations: dict[str, tuple[Mitigation, ...]] | None = None,
    noise: float | None = 0.0625, regime: Regime | None = None, correlation: float = 0.875,
) -> LabResult:  # fmt: skip
    regime = regime or Regime(steps=60)
    one = RegimeVerdict(regime=regime, recipes=recipes, seed_noise=noise, mitigations=mitigations or {})
    runs = tuple(
        LabRun(recipe=each.recipe, regime=regime, seed=0, losses=(2.0,), probes=(), stopped_at=None, held_out_loss=2.0)
        for each in recipes
    )
    experiment = Experiment(name="made <up>", says="of nothing & no one", recipes=("naive",), regimes=(regime,))
    return LabResult(
        experiment=experiment, runs=runs, verdicts=(one,), warning=WarningRank(spearman=correlation, runs=12),
        text="a text",
    )  # fmt: skip


def cells(found: RecipeVerdict) -> list[str]:
    """The row of ``found``, read back from the page."""
    page = lab_page(result((BF16, found)), [b""])
    row = page.split("<tr>")[3]
    return [html.unescape(one) for one in re.findall(r"<td>(.*?)</td>", row)]


#: Verdict → (outcome, final loss, gap, ± 95 %, since, warning, narrow, alarm) as they are written.
ROWS: list[tuple[RecipeVerdict, list[str]]] = [
    (NAIVE, ["blown up", "2.500", "+4.500", "", "31", "0.38", "75%", "step 7: underflows 12 in head g"]),
    (CURRENT, ["as good, inside seed noise", "2.500", "-0.062", "0.12", "", "0.38", "75%", ""]),
    (KEPT, ["worse", "2.500", "+0.500", "0.12", "", "0.38", "75%", ""]),
    (replace(KEPT, noise=None), ["worse", "2.500", "+0.500", "", "", "0.38", "75%", ""]),
    (replace(KEPT, noise=0.5), ["worse, inside seed noise", "2.500", "+0.500", "0.50", "", "0.38", "75%", ""]),
    (STOPPED, ["NaN at step 4–9, 2 of 3 seeds", "NaN", "NaN", "", "4", "0.38", "75%", ""]),
    (replace(STOPPED, stops={2: 5}, seeds=1), ["NaN at step 5", "NaN", "NaN", "", "4", "0.38", "75%", ""]),
    (replace(STOPPED, stops={0: 5, 1: 5}), ["NaN at step 5, 2 of 3 seeds", "NaN", "NaN", "", "4", "0.38", "75%", ""]),
]  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), ROWS)
def test_a_row_of_a_verdict(found: RecipeVerdict, expected: list[str]) -> None:
    assert cells(found) == [found.recipe.name, *expected]
    text = render_lab(result((BF16, found)))
    line = next(one for one in text.splitlines() if one.startswith(found.recipe.name))
    assert [one for one in re.split(r" {2,}", line) if one] == [found.recipe.name, *filter(None, expected)]


def test_the_reference_has_no_gap_and_no_warning() -> None:
    assert cells(BF16) == ["bf16", "reference", "2.250", "", "", "", "", "0%", ""]


def test_the_headline_says_the_regime() -> None:
    text = render_lab(result((BF16,)))
    assert text.splitlines()[:4] == [
        "made <up>: of nothing & no one",
        "text: a text",
        "",
        "60 steps, learning rate 0.002, clipped at 1; one gap varies by ± 0.06 (standard deviation) between seeds",
    ]
    assert text.splitlines()[-1] == (
        "early warning: what the first 3 steps lost ranks the final gap of the 12 runs that outlived them with Spearman 0.88"
    )
    alone = render_lab(result((BF16,), noise=None, regime=Regime(outlier_gain=1.5), correlation=math.nan))
    assert "clipped at 1, outliers × 1.5; one seed, so its noise is not known" in alone
    assert alone.endswith("early warning: 12 runs are too few or too alike to rank")
    assert "outliers" not in text.replace("outlived", "")


def test_what_mends_a_failure_best_first_and_no_more_than_four() -> None:
    better = tuple(
        Mitigation(verdict=one, changes={"loss_scale": (1.0, 2.0), "hadamard": (False, True)})
        for one in (CURRENT, KEPT, STOPPED, CURRENT, KEPT)
    )
    found = result((BF16, NAIVE, KEPT), mitigations={"naive": better, "naive-head-kept": ()})
    lines = render_lab(found).splitlines()
    at = lines.index("naive (blown up): what mends it, best first")
    changes = "75% narrow (loss scale 1.0 → 2.0, hadamard off → on)"
    assert lines[at + 1 : at + 6] == [
        f"  1. current: as good, gap -0.062, {changes}",
        f"  2. naive-head-kept: worse, gap +0.500, {changes}",
        f"  3. delayed-nan: NaN at step 4–9, 2 of 3 seeds, {changes}",
        f"  4. current: as good, gap -0.062, {changes}",
        "",
    ]
    assert lines[at + 6] == "naive-head-kept (worse): nothing in this matrix mends it"
    page = lab_page(found, [b"\x89PNG picture"])
    assert page.count("<li>") == 4
    assert html.escape(f"current: as good, gap -0.062, {changes}") in page
    assert "<h3>naive-head-kept (worse): nothing in this matrix mends it</h3><ol></ol>" in page


def test_the_page_holds_its_pictures_and_escapes_words() -> None:
    page = lab_page(result((BF16, NAIVE)), [b"\x89PNG picture"])
    (encoded,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(encoded) == b"\x89PNG picture"
    assert "<h1>made &lt;up&gt;</h1><p>of nothing &amp; no one</p>" in page
    assert page.endswith("</body></html>\n")
    with pytest.raises(ValueError, match="zip"):
        lab_page(result((BF16,)), [])


def test_explanations_list_every_recipe_and_bound() -> None:
    text = explain_lab(result((BF16, NAIVE)), width=400)
    for recipe in (BF16.recipe, NAIVE.recipe):
        assert re.search(rf"^{re.escape(recipe.name)} +{re.escape(recipe.says)}$", text, re.M)
    assert "mean of the last 20 steps" in text
    shipped = Thresholds.shipped()
    assert re.search(rf"^shadow gap above +{shipped.shadow_gap_above:g}$", text, re.M)
    assert re.search(rf"^gradient cosine below +{shipped.gradient_cosine_below:g}$", text, re.M)


def test_the_catalogue_counts_runs() -> None:
    text = render_catalogue(list(PRESETS.values()), list(RECIPES.values()), width=400)
    for preset in PRESETS.values():
        recipes = len({"bf16", *preset.recipes})
        count = recipes * len(preset.regimes) * len(preset.seeds)
        assert re.search(rf"^{re.escape(preset.name)} +{count}  {re.escape(preset.says)}$", text, re.M)
    for recipe in RECIPES.values():
        assert re.search(rf"^{re.escape(recipe.name)} +{re.escape(recipe.says)}$", text, re.M)
