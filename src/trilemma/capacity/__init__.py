"""What to buy or rent: cards and their number for a need, ranked over the whole catalogue."""
