"""The model processes: their placement on the machine, and which models are loaded."""
