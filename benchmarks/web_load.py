"""The page's API under load: ``locust -f benchmarks/web_load.py --headless -u 100 -r 50 -t 40s -H http://127.0.0.1:8642``.

`locust <https://locust.io>`_ comes from the package index into an environment of its own. 100 users ask twice a second each, 200
requests a second, whatever the answers take. ``ASKED`` says what: ``new`` (the default: each question asked once, so that
nothing is kept of it), ``few`` (200 questions again and again) or ``any`` (new ones; a fifth does not fit and gets its remedies).
The first seconds, in which models are read, are not counted.
"""

from __future__ import annotations

import os
import random

from locust import FastHttpUser, constant_throughput, events, task

_MODELS = ("llama-3.1-8b", "qwen3-8b", "qwen3-32b", "gpt-oss-20b")
_LARGE = (*_MODELS, "llama-3.1-70b", "gpt-oss-120b", "mixtral-8x7b")
_CARDS = ("h100-sxm:8", "h200-sxm:8", "b200-sxm:8", "h100-sxm:2", "mi300x:8", "h200-sxm:1")
_SMALL = (*_CARDS, "l40s:4", "h100-sxm:1", "rtx-4090:2")
_ASKED = os.environ.get("ASKED", "new")
_WARM_S = 10
draw = random.Random(os.getpid())


def question() -> dict[str, str]:
    models, cards = (_LARGE, _SMALL) if _ASKED == "any" else (_MODELS, _CARDS)
    return {
        "model": draw.choice(models), "gpu": draw.choice(cards), "isl": str(draw.randint(100, 8000)),
        "osl": str(draw.randint(10, 2000)), "concurrency": str(draw.randint(1, 64)),
    }  # fmt: skip


_FEW = [question() for _ in range(200)]


class Asker(FastHttpUser):
    wait_time = constant_throughput(2)

    @task
    def fit(self) -> None:
        asked = draw.choice(_FEW) if _ASKED == "few" else question()
        query = "&".join(f"{name}={value.replace(':', '%3A')}" for name, value in asked.items())
        self.client.get(f"/api/fit?{query}", name="fit")


@events.test_start.add_listener
def start(environment: object, **_: object) -> None:
    import gevent

    gevent.spawn_later(_WARM_S, lambda: environment.stats.reset_all())  # type: ignore[attr-defined]
