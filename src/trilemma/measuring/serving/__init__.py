"""A server under load: requests sent as traffic says, every token's time taken, figures that other commands read."""
