"""torchtune: `tune run RECIPE --config NAME key=value`."""
