"""The model that the operator names: its path, template, sampling and pooling."""
