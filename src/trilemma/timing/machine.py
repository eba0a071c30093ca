"""A cluster as timing sees it: datasheet figures, wires, and the coefficients of its kind of card under an engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.quantities import Numbers
from trilemma.timing.coefficients import Coefficients, at_datasheet, coefficients_for, kernels_of, scaled, spec_sheet
from trilemma.timing.collectives import Wires, wires
from trilemma.timing.eras import Era, era_of, works_ahead
from trilemma.timing.operators import ExpertProducts, ModelWork, Products
from trilemma.timing.roofline import peak_flops
from trilemma.timing.sampling import sampled_logit_s, waits_for_tokens
from trilemma.timing.serving_terms import ServingTerms, precision_of, shipped

#: GGUF's Q8_0 and all below it.
_NARROW_BITS = 8.5


def beside_terms(coefficients: Coefficients, untold: frozenset[str], era: Era) -> Coefficients:
    """``coefficients`` with what no term of an engine says: products where sums run at half rate and no run tells them, and what
    collectives of an age reach of PCIe.

    Shares of the stated peak and of the link, numbers. Source: tables ``halved_sums`` of data/coefficients/spec_sheet.toml and
    ``pcie_share`` of engine_eras.toml.
    """
    if "matmul" in untold:
        coefficients = replace(coefficients, matmul=coefficients.matmul | spec_sheet()["halved_sums"]["matmul"])
    return coefficients.with_numbers(**era.numbers) if era.numbers else coefficients


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A cluster as timing sees it: datasheet figures and the coefficients of its kind of card.

    ``terms`` are the serving terms that were put in (None: none were), ``engine`` and ``precision`` name whose, ``measured`` says
    whether runs of this very deployment are among what they were fitted to, ``era`` the age of the engine. ``ideal``: everything
    runs at its datasheet figure. ``routes_tokens``: tokens go to the ranks of their experts alone, not to all.
    ``eager``: the host launches every kernel of a decode step.
    """

    accelerator: Accelerator
    coefficients: Coefficients
    wires: Wires
    cluster: Cluster
    engine: str = ""
    precision: str = ""
    measured: bool = False
    era: Era = field(default_factory=Era)
    ideal: bool = False
    routes_tokens: bool = False
    eager: bool = False
    terms: ServingTerms | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, cluster: Cluster, engine: str = "") -> Machine:
        """``cluster`` with the coefficients of its kind of card, unfitted, under the kernels of ``engine`` and its scheduler's
        default."""
        coefficients = coefficients_for(cluster.accelerator, engine)
        if not works_ahead(engine):
            coefficients = coefficients.in_turn()
        return cls(
            accelerator=cluster.accelerator,
            coefficients=coefficients,
            wires=wires(cluster, coefficients),
            cluster=cluster,
        )

    @classmethod
    def serving(
        cls,
        cluster: Cluster,
        *,
        work: ModelWork,
        engine: str,
        version: str | None = None,
        terms: ServingTerms | None = None,
        routes_tokens: bool = False,
        eager: bool = False,
        ahead: bool | None = None,
        sampling: str = "greedy",
        spilled: bool = False,
        backend: str | None = None,
    ) -> Machine:
        """`of`, with the coefficients scaled by ``terms`` (those shipped, where none are given) of ``engine`` on such cards, and
        by the age of its ``version`` (None: the newest); ``eager``: no graph replays its decode steps; ``ahead``: whether its
        scheduler works ahead of the cards (None: as the version does by default); ``sampling``: what requests ask
        of the sampler; ``spilled``: some layers or experts lie on the host; ``backend``: whose kernels run (None: those of the
        cards' maker). An engine that runs another's kernels is timed as that one, at its own age."""
        named, engine = engine, kernels_of(engine)
        plain, terms, precision = cls.of(cluster, engine), terms or shipped(), precision_of(work)
        factors = terms.factors(engine, cluster.accelerator, precision)
        if (
            cluster.accelerator.own_rates and engine not in terms.figures
        ):  # kernels of this very machine, under no engine told
            factors = dict.fromkeys(factors, 1.0)
        measured = terms.measured(engine, cluster.accelerator, precision)
        # a profile was made on the release that it speaks for
        era = Era()
        if terms.profile is None:
            era = era_of(named, version, cluster.accelerator, spilled=spilled, backend=backend)
        factors |= {term: factors[term] * factor for term, factor in era.factors.items()}
        coefficients = scaled(plain.coefficients, factors)
        untold = terms.untold(engine, cluster.accelerator, precision)
        coefficients = beside_terms(coefficients, untold, era)
        if not (works_ahead(named, version) if ahead is None else ahead) or waits_for_tokens(sampling, engine=named):
            coefficients = coefficients.in_turn()
        coefficients = coefficients.with_numbers(sampled_logit_s=plain.logit_s(sampling, engine=named, version=version))
        if eager:
            wider = spec_sheet()["eager"]
            era = replace(era, low=era.low * wider["low"], high=era.high * wider["high"])
        fitted = plain.with_coefficients(coefficients)
        return replace(
            fitted,
            engine=engine,
            precision=precision,
            measured=measured,
            era=era,
            terms=terms,
            routes_tokens=routes_tokens,
            eager=eager,
        )

    def logit_s(self, sampling: str, *, engine: str, version: str | None) -> float:
        """Seconds of the sampler for each logit of a row, its passes streaming as 16-bit weights do before any term is fitted."""
        streamed = self.bandwidth * float(coefficients_for(self.accelerator, engine).stream_share(16))
        return sampled_logit_s(sampling, engine=engine, version=version, bytes_per_s=streamed)

    def working(self, *, ahead: bool) -> Machine:
        """The same machine with a scheduler that works ahead of the cards, or takes turns with them."""
        power = spec_sheet()["host"]["host_overlap_power"] if ahead else 1.0
        return self.with_coefficients(self.coefficients.with_numbers(host_overlap_power=power))

    def as_asked(self, *, graph_sizes: tuple[int, ...] | None, micro_batch: Numbers | None) -> Machine:
        """The same machine whose engine captures graphs of ``graph_sizes`` tokens and cuts passes into ``micro_batch`` rows, if
        it does such things; None leaves its own."""
        numbers: dict[str, Numbers] = {}
        if graph_sizes is not None and self.coefficients.graph_tokens > 0:
            numbers["graph_tokens"] = max(graph_sizes, default=0)
        if micro_batch is not None and self.coefficients.micro_batch_rows > 0:
            numbers["micro_batch_rows"] = micro_batch
        return self.with_coefficients(self.coefficients.with_numbers(**numbers)) if numbers else self

    def with_coefficients(self, coefficients: Coefficients) -> Machine:
        """The same cards and wires under other coefficients."""
        return replace(self, coefficients=coefficients, wires=wires(self.cluster, coefficients))

    @property
    def power_cap(self) -> float | None:
        """The share of the board's limit that a cap leaves; None where there is none, and at the datasheet's figures."""
        cap, limit = self.cluster.power_cap_w, self.accelerator.tdp_w
        return None if cap is None or limit is None or self.ideal else cap / limit.value

    def at_clock(self, clock: Numbers, *, launches: float, memory: float, compute: float) -> Machine:
        """The same cards at ``clock`` (of the one they run at without a cap), where these parts of a time follow it."""
        own = self.coefficients
        slower = {name: 1.0 - part + part / np.asarray(clock) for name, part in
                  (("launches", launches), ("memory", memory), ("compute", compute))}  # fmt: skip
        timed = ("kernel_s", "attention_kernel_s", "experts_kernel_s")
        numbers = {name: getattr(own, name) * slower["launches"] for name in timed}
        numbers["cache_stream"] = own.cache_stream / slower["memory"]
        numbers["prefill_attention"] = own.prefill_attention / slower["compute"]
        changed = replace(
            own.with_numbers(**numbers),
            matmul={name: share / slower["compute"] for name, share in own.matmul.items()},
            stream={bits: share / slower["memory"] for bits, share in own.stream.items()},
        )
        return self.with_coefficients(changed)

    def at_datasheet(self) -> Machine:
        """The same cards and wires at their datasheet figures: no pass is faster, its lines are the roofs of this one's."""
        return replace(self.with_coefficients(at_datasheet(self.coefficients)), ideal=True)

    def roof_flops(self, computed_in: str, bits: float = 16.0) -> float:
        """Peak of the units in which the engine multiplies weights of ``bits`` that are said to be ``computed_in``.

        FLOPs a second, a number. INT8 units run at twice the rate of FP16 with sums in FP16, on every generation that has both
        (NVIDIA's architecture papers from Turing on).
        """
        peak, int8 = peak_flops(self.accelerator, computed_in), self.accelerator.peak_flops.get("int8")
        if int8 is None:
            return peak
        if self.multiplies_in_int8(bits):
            return max(peak, int8.value)
        return max(peak, int8.value / 2) if self.coefficients.sums_in_fp16 else peak

    def multiplies_in_int8(self, bits: float) -> bool:
        """Whether the engine brings both sides of products with weights of ``bits`` to INT8; ``bits`` is a number."""
        narrow = bits <= _NARROW_BITS and "int8" in self.accelerator.peak_flops
        return bool(self.coefficients.quantised_in_int8) and narrow

    def int8_share(self, bits: float) -> float:
        """What INT8 units reach of their peak over what products in 16 bits reach of theirs, a number; 1 where none are used.

        Kernels that unpack scales and sums of blocks on the way are some times as fast as 16-bit products of the same shape
        (``int8_share`` of the spec sheet), however fast INT8 units are: twice those of FP16 from NVIDIA, no faster on RDNA3.
        """
        if not self.multiplies_in_int8(bits):
            return 1.0
        int8 = self.accelerator.peak_flops["int8"].value
        wide = max(peak_flops(self.accelerator, "bf16"), int8 / 2 if self.coefficients.sums_in_fp16 else 0.0)
        return min(float(self.coefficients.int8_share) * wide / int8, 1.0)

    def least_computing_s(self, work: ModelWork, *, fresh: Numbers, osl: Numbers) -> Any:
        """Seconds in which one card at its peaks would multiply for a request of ``fresh`` prompt and ``osl`` output tokens.

        Two FLOPs for each active parameter and token, the head for output tokens alone, attention to past tokens left out; each
        format at the peak of its own units. The last token is put out and passed through nothing. Numbers or arrays (plans,).

        Source: the convention of PaLM (Chowdhery et al. 2022, appendix B), attention left out.
        """
        away = () if work.host is None else (work.host.work,)
        body = sum(self._multiplied_s(one.dense, one.experts) for one in (work, *away))
        head = sum(self._multiplied_s(one.head, ()) for one in (work, *away))
        return body * (np.asarray(fresh) + osl - 1) + head * np.asarray(osl)

    def _multiplied_s(self, dense: tuple[Products, ...], experts: tuple[ExpertProducts, ...]) -> float:
        total = sum(2.0 * one.elements / self.roof_flops(one.computed_in, one.bits) for one in dense)
        for one in experts:
            active = 2.0 * one.layers * one.elements * min(one.top_k / one.experts, 1.0)
            total += active / self.roof_flops(one.computed_in, one.bits)
        return total

    @property
    def bandwidth(self) -> float:
        return self.accelerator.bandwidth_bytes_per_s.value
