"""How evenly experts are loaded, as engines with expert parallelism print it: mean over greatest load of a rank.

Lines: vllm/distributed/eplb/eplb_state.py (``EPLB step: …, avg_tokens=…, max_tokens=…, balancedness=…``), SGLang
eplb/expert_distribution.py (``[Expert Balancedness] forward_pass_id=… current_pass_balancedness=…``).
"""

from __future__ import annotations

import re
from array import array
from statistics import median

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "expert-load"
_MOST = 100_000
_BALANCE = re.compile(r"balancedness[=:] ?([01](?:\.\d{1,12})?)")


class _Gatherer:
    def __init__(self) -> None:
        self._values = array("d")
        self._first: Event | None = None

    def take(self, record: str, where: int) -> None:
        found = _BALANCE.search(record[:2000])
        if found is None or len(self._values) >= _MOST:
            return
        self._values.append(float(found[1]))
        self._first = self._first or Event(name="balance", line=where, values={"text": record.strip()[:300]})

    def part(self) -> Part | None:
        if self._first is None:
            return None
        facts = {"median_balancedness": median(self._values), "least_balancedness": min(self._values)}
        return Part(kind=KIND, weight=0.2 * len(self._values), facts=facts, events=(self._first,))


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("balancedness",))
