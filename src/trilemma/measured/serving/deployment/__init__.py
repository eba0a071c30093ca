"""One deployment's own runs: benchmark files, its profile, and the prediction they settle."""
