"""Before a cluster lets engines in: what cannot fit is denied, with the reason and the remedy."""
