"""What a model will take on a machine, known before a weight is read: cores, memory, time."""
