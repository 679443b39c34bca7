"""The worker process: its cores and memory, its model, and the loop that answers plans."""
