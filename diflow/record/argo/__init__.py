"""What Argo has made of a job: its nodes, the tree of replicas, and why pods ended."""
