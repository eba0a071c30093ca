"""The fit of training time: recovers what made its rows, leaves what no row tells at its prior, and never names a model."""

from pathlib import Path

import numpy as np
import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.measured.robust_fit import robust_fit
from trilemma.measured.tables import read_table
from trilemma.measured.training.document import fit_table, read_samples
from trilemma.measured.training.fit import Design
from trilemma.models.catalogue import entries
from trilemma.timing.training_coefficients import coefficients, document
from trilemma.timing.training_frameworks import eras, find_framework, frameworks

TABLE = Path(__file__).parents[2] / "data" / "training_sample.csv"


def test_outliers_pull_no_harder_than_their_size() -> None:
    truth = np.array([0.3, -0.2])
    matrix = np.random.default_rng(0).normal(size=(200, 2))
    target = matrix @ truth
    target[:10] += 50.0
    found = robust_fit(
        lambda theta: matrix @ theta - target,
        lambda _: matrix,
        np.zeros(2),
        np.ones(2),
        weights=np.ones(200),
        noise=0.05,
    )
    assert found == pytest.approx(truth, abs=0.02)


def test_parameters_without_rows_stay_at_their_priors() -> None:
    matrix = np.array([[1.0, 0.0]])
    found = robust_fit(
        lambda theta: matrix @ theta - 1.0, lambda _: matrix, np.array([0.0, 0.7]), np.array([10.0, 0.1]),
        weights=np.ones(1), noise=0.01,
    )  # fmt: skip
    assert found == pytest.approx([1.0, 0.7], abs=1e-3)


def test_slopes_are_those_of_the_prediction() -> None:
    design = Design(read_samples(read_table(TABLE).rows))
    slopes = design.slopes(design.start)
    for index in range(0, len(design.names), 7):
        moved = design.start.copy()
        moved[index] += 1e-5
        numeric = (design.predict(moved) - design.predict(design.start)) / 1e-5
        assert slopes[:, index] == pytest.approx(numeric, abs=1e-3)


def test_a_fit_explains_rows_that_it_could_have_made() -> None:
    design = Design(read_samples(read_table(TABLE).rows))
    hidden = design.start + design.spread * np.random.default_rng(1).normal(size=design.start.size) * 0.7
    design.measured = design.predict(hidden)
    left = np.abs(design.predict(design.fit()) - design.measured)
    assert np.median(left) < 0.02
    assert left.max() < 0.1


def test_too_few_rows_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="a fit needs at least 20"):
        fit_table(TABLE)
    assert main(["calibrate", "training", str(TABLE)]) == 2
    assert "a fit needs at least 20" in capsys.readouterr().err


def test_no_coefficient_names_a_model() -> None:
    models = {name.lower() for name in entries()}
    for name in coefficients():
        assert not models & set(name.lower().split("."))
    assert all(0 < value < 1e3 for value in coefficients().values())


def test_the_data_file_says_where_it_is_from() -> None:
    assert "measured steps" in document()["source"]
    for spread in document()["spread"].values():
        low, high = spread["step"]
        assert 0.2 < low < 1 < high < 5
        assert spread["rows"] > 0


def test_frameworks_by_the_words_of_tables() -> None:
    found = {text: getattr(find_framework(text), "name", None) for text in (
        "Megatron-Bridge NeMo 26.04", "NVIDIA NeMo Framework Release 25.04", "NeMo 24.07", "Megatron-LM 2021",
        "Megatron-LM+DeepSpeed 2021", "Megatron-LM 23e00ed0 (v0.14)", "torchtitan+torchao", "something new",
    )}  # fmt: skip
    assert list(found.values()) == [
        "megatron-bridge", "megatron-bridge", "nemo", "megatron-2021", "deepspeed", "megatron-lm", "torchtitan", None,
    ]  # fmt: skip
    assert eras("megatron-bridge")[-1] == "26.06"
    assert len({framework.name for framework in frameworks()}) == len(frameworks())
