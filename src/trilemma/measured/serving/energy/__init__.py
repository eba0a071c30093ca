"""Energy of serving: joules and watts as measured against what an estimate states."""
