"""Relations that hold between answers, whatever is asked."""
