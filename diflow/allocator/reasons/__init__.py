"""A plan as text for people: the reason of each decision, what is short on which nodes, the whole plan."""
