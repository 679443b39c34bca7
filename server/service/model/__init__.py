"""The model as the operator names it: its place, template, sampling and pooling."""
