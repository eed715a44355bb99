"""What outlives a job: the record of ended jobs, and the memory of applications."""
