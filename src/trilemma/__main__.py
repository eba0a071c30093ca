"""``python -m trilemma``."""

import sys

from trilemma.cli.main import main

sys.exit(main())
