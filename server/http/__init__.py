"""HTTP parts that every route needs, whatever the route answers: keys, bodies, errors, the access log."""
