"""What a DIJob's manifest may say: documents, pod templates, and the rules of Kubernetes and Argo for them."""
