"""The validation of DIJob manifests: documents, pod templates, and the rules of Kubernetes and Argo for them."""
