"""DeepSpeed: ``config`` reads its JSON file, ``write`` writes it."""
