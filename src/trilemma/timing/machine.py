"""A cluster as timing sees it: datasheet figures, wires, and the coefficients of its kind of card under an engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.timing.coefficients import Coefficients, at_datasheet, coefficients_for, scaled
from trilemma.timing.collectives import Wires, wires
from trilemma.timing.operators import ModelWork
from trilemma.timing.serving_terms import ServingTerms, precision_of, shipped


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A cluster as timing sees it: datasheet figures and the coefficients of its kind of card.

    ``terms`` are the serving terms that were put in (None: none were), ``engine`` and ``precision`` name whose, ``measured`` says
    whether runs of this very deployment are among what they were fitted to. ``ideal``: everything runs at its datasheet figure.
    """

    accelerator: Accelerator
    coefficients: Coefficients
    wires: Wires
    cluster: Cluster
    engine: str = ""
    precision: str = ""
    measured: bool = False
    ideal: bool = False
    terms: ServingTerms | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, cluster: Cluster) -> Machine:
        coefficients = coefficients_for(cluster.accelerator)
        return cls(
            accelerator=cluster.accelerator,
            coefficients=coefficients,
            wires=wires(cluster, coefficients),
            cluster=cluster,
        )

    @classmethod
    def serving(cls, cluster: Cluster, *, work: ModelWork, engine: str, terms: ServingTerms | None = None) -> Machine:
        """`of`, with the coefficients scaled by ``terms`` (those shipped, where none are given) of ``engine`` on such cards."""
        plain, terms, precision = cls.of(cluster), terms or shipped(), precision_of(work)
        factors = terms.factors(engine, cluster.accelerator, precision)
        fitted = plain.with_coefficients(scaled(plain.coefficients, factors))
        measured = terms.measured(engine, cluster.accelerator, precision)
        return replace(fitted, engine=engine, precision=precision, measured=measured, terms=terms)

    def with_coefficients(self, coefficients: Coefficients) -> Machine:
        """The same cards and wires under other coefficients."""
        return replace(self, coefficients=coefficients, wires=wires(self.cluster, coefficients))

    def at_datasheet(self) -> Machine:
        """The same cards and wires at their datasheet figures: no pass is faster, its lines are the roofs of this one's."""
        return replace(self.with_coefficients(at_datasheet(self.coefficients)), ideal=True)

    @property
    def bandwidth(self) -> float:
        return self.accelerator.bandwidth_bytes_per_s.value
