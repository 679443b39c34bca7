"""Model families: how a checkpoint's configuration, weights and forward pass map to the kernels' vocabulary."""
