"""A real Kubernetes cluster on one machine, with Argo Workflows in it, and no container engine.

The demo and the end-to-end tests need true API servers, kubelets and pods. This package builds every server
from its Go module, runs each cluster inside namespaces of its own, and takes it away without a trace.
It uses Python's standard library alone, so that it runs before any virtual environment exists,
and it must know nothing of diflow's own rooms beyond the folders that it copies into an image.
"""
