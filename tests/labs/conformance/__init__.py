"""The facts of the design, measured on real clusters with each supported version of Argo."""
