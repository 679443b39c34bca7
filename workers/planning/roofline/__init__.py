"""What a model's steps take on a host that is only described: the same forward pass, counted instead of run."""
