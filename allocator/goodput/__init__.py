"""The parts of the goodput policy: performance model, its fit, tables of goodput, and the optimiser."""
