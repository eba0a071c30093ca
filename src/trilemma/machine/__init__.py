"""The machine under the program, or another by what its tools printed: its cards, its limits, what could not be seen."""
