"""Planning of a model on a machine, before a weight is read: cores, memory, time."""
