"""What goes into the next step: one small class for each scheduler that engines have, behind one protocol."""
