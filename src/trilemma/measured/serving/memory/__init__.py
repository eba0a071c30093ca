"""Start-ups of serving engines: what a row asks, how it is judged, the terms fitted to them."""
