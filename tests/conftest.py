"""No test asks the network: a hub that does not answer is tried again for a minute, and answers change from day to day.

Screens are those of a wide window, so that what they hold can be looked for; `tests/report/test_windows.py` makes them narrow.
An example of Hypothesis may take its time: how long one takes says more of the machine than of the code.
"""

from __future__ import annotations

import contextlib
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["COLUMNS"] = "200"
with contextlib.suppress(ImportError):  # the tests of the page need no Hypothesis
    from hypothesis import settings

    settings.register_profile("trilemma", deadline=None)
    settings.load_profile("trilemma")
