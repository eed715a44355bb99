"""The policies `goodput` and `fair+goodput`: performance model, its fit, tables of goodput, and the optimiser."""
