"""Two hosts in network namespaces: see `__main__`."""
