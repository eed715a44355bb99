"""What a policy is given and what it returns: snapshots, plans, and what follows from them alone. Pure."""
