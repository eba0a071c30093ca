"""What a plan asks of a building and costs there: racks, cooling, energy, carbon, water, dollars of owning and renting."""
