"""One class a scheduler: which waiting job is next, where it goes and who has to leave for it."""
