"""What is wrong with a command, a configuration or a script before it runs: read, never run, nothing of it imported."""
