"""From the cluster state to a plan of a policy, and to its writes."""
