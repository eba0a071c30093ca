"""How many requests a cache holds, where some plans of a table need none of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from trilemma.estimate.serving_load import requests_held


def test_a_request_that_takes_no_cache_is_held_without_end() -> None:
    pool = SimpleNamespace(
        bytes_per_token_per_gpu=np.array([0.0, 2.0]), grows_to=np.array([8.0, 8.0]), concurrency=np.array([0.0, 3.0])
    )
    start: Any = SimpleNamespace(pool=pool, request_bytes=np.array([0.0, 16.0]), context=8)
    # three of eight tokens are six of four
    assert requests_held(start, length=4).tolist() == [np.inf, 6.0]
