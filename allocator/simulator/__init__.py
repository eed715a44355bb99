"""A discrete-event simulator of a cluster under a policy, from measured profiles of real training applications."""
