"""What people paste, read without knowing whose it is: shells, containers, manifests, launchers, flags by a table of them."""
