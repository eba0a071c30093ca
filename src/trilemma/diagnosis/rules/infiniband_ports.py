"""InfiniBand and RoCE ports that are down, slower than their neighbours, or lose packets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.infiniband import KIND, ports_in
from trilemma.diagnosis.rules import Rule

#: Counters of the link itself since the driver was loaded, with what each means (InfiniBand Architecture 16.1.3.5); some are
#: full at 255 or 15 and then say "at least".
_LINK = {"link_downed": "went down", "link_error_recovery": "recovered from errors"}
_ERRORS = {
    "symbol_error": "symbol errors", "local_link_integrity_errors": "link integrity errors",
    "port_rcv_errors": "packets with errors", "port_rcv_remote_physical_errors": "packets marked bad by the other side",
    "out_of_sequence": "packets out of sequence", "packet_seq_err": "sequence errors",
    "local_ack_timeout_err": "timeouts of acknowledgements", "rnr_nak_retry_err": "retries because the receiver was not ready",
}  # fmt: skip
#: Above one in so many packets the errors are worth a warning.
_ONE_IN = 1_000_000
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,4})?) Gb/sec")
_FULL = {"link_downed": 255, "link_error_recovery": 255}


def _judge(case: Case) -> Iterator[Finding]:
    ports = ports_in(case)
    fastest = max((_rate(values) for values in ports.values()), default=0.0)
    for (_, device, port), values in ports.items():
        where = f"{device} port {port}"
        yield from _state(where, values, fastest)
        yield from _counters(where, values)


def _rate(values: Mapping[str, tuple[str, Any]]) -> float:
    found = _RATE.search(str(values.get("rate", ("", ""))[1]))
    return float(found[1]) if found else 0.0


def _proof(values: Mapping[str, tuple[str, Any]], *names: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(file=values[name][0], line=1, value=f"{name} {values[name][1]}") for name in names)


def _state(where: str, values: Mapping[str, tuple[str, Any]], fastest: float) -> Iterator[Finding]:
    state = str(values.get("state", ("", "ACTIVE"))[1])
    if "ACTIVE" not in state:
        yield Finding(
            id="network.port-down", role="root", severity="error", claim=f"{where} is not active: {state}",
            evidence=_proof(values, "state"), expected="4: ACTIVE", observed=state, confidence="established",
            fix="cable, switch port and subnet manager; take the card out of NCCL_IB_HCA until it is up",
        )  # fmt: skip
    rate = _rate(values)
    if 0 < rate < fastest:
        yield Finding(
            id="network.port-slow", role="root", severity="warning",
            claim=f"{where} runs at {rate:g} Gb/s, others of this machine at {fastest:g}",
            evidence=_proof(values, "rate"), expected=f"{fastest:g} Gb/s", observed=f"{rate:g} Gb/s",
            confidence="supported", fix="the link came up with fewer or slower lanes: reseat the cable, then replace it",
            predicted_effect=f"collectives wait for the slowest card: up to {fastest / rate:.3g} times as fast",
        )  # fmt: skip


def _counters(where: str, values: Mapping[str, tuple[str, Any]]) -> Iterator[Finding]:
    for name, words in _LINK.items():
        count = values.get(name, ("", 0))[1]
        if isinstance(count, int) and count > 0:
            full = count >= _FULL[name]
            yield Finding(
                id=f"network.{name.replace('_', '-')}", role="root", severity="warning",
                claim=f"{where} {words} {'at least ' if full else ''}{count} times since its counters were cleared",
                evidence=_proof(values, name), expected="0", observed=f"{count}{' (the counter is full)' if full else ''}",
                confidence="supported",
                fix="see whether it grows (clear it with perfquery -R); a cable, a transceiver, or a neighbour that restarts",
            )  # fmt: skip
    packets = values.get("port_rcv_packets", ("", 0))[1]
    found = [(name, values[name][1]) for name in _ERRORS if isinstance(values.get(name, ("", 0))[1], int)
             and values.get(name, ("", 0))[1] > 0]  # fmt: skip
    if not found:
        return
    worst = max(count for _, count in found)
    many = isinstance(packets, int) and packets > 0 and worst * _ONE_IN > packets
    told = ", ".join(f"{count} {_ERRORS[name]}" for name, count in found)
    yield Finding(
        id="network.port-errors", role="root" if many else "context", severity="warning" if many else "context",
        claim=f"{where}: {told}" + (f", of {packets:,} packets" if packets else ""),
        evidence=_proof(values, *(name for name, _ in found)), expected="next to none", observed=told,
        confidence="supported", fix="replace the cable or transceiver if they grow" if many else None,
    )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
