"""No test asks the network: a hub that does not answer is tried again for a minute, and answers change from day to day.

Screens are those of a wide window, so that what they hold can be looked for; `tests/report/test_windows.py` makes them narrow.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["COLUMNS"] = "200"
