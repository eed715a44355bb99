"""What users request of a job since its submission: numbers of replicas, and what the server notes of requests."""
