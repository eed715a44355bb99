"""What `make demo-training` records of a training, the troubles that it makes, and the picture that it draws."""
