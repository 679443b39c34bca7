"""HTTP parts that all routes share: keys, bodies, errors and the access log."""
