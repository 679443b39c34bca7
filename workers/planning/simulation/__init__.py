"""Steps of a model on a host that is not at hand: its programs run here, over kernels that count."""
