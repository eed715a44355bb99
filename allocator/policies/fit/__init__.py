"""The policy `fit`: first fit by priority and age, with preemption and growth."""
