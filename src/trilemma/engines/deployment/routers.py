"""The command line that vLLM's and SGLang's routers share (the one was made from the other)."""

from __future__ import annotations

from collections.abc import Sequence

from trilemma.engines.deployment.facts import facts
from trilemma.engines.deployment.fleet import End, Route


def http_router(program: Sequence[str], ends: Sequence[End], port: int, *, apart: str, sides: bool = False) -> Route:
    """A router before ``ends`` on ``port``, every engine in its turn: the load that an estimate assumes.

    ``apart`` is the flag for pools of prefill and decode; ``sides`` says that prefill engines are named with their side port.
    """
    urls = {role: [end for end in ends if end.role == role] for role in ("prefill", "decode")}
    words = list(program)
    if urls["prefill"]:
        words.append(apart)
        for end in urls["prefill"]:
            words += ["--prefill", f"http://{end.host}:{end.port}"]
            words += [str(end.side)] if sides and end.side is not None else []
        for end in urls["decode"]:
            words += ["--decode", f"http://{end.host}:{end.port}"]
    else:
        words += ["--worker-urls", *(f"http://{end.host}:{end.port}" for end in ends)]
    waits = facts()["router"]
    words += ["--policy", "round_robin", "--host", "0.0.0.0", "--port", str(port)]
    words += [
        "--worker-startup-timeout-secs",
        str(waits["startup_s"]),
        "--request-timeout-secs",
        str(waits["request_s"]),
    ]
    return Route(words=tuple(words))
