"""Who comes in `make demo-queues`, what each queue deserves, how the commands are checked, and the picture."""
