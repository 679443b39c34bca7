"""Recovery from the death of the workers: the fate of the requests and the end of the outage."""
