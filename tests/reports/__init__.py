"""Reports of users of training jobs on Kubernetes, tried on the allocator in a lab whose kube-scheduler knows more."""
