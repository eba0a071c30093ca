"""The ledger: every run with its configuration, machine, estimate and figures, and what follows from many of them."""
