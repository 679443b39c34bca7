"""A record of what a reorganisation must not change, and its comparison with the record of another tree.

`python -m tests.golden record` drives servers through their command line, HTTP and ZeroMQ alone, so that it works on
any tree, whatever the names of its modules.
"""
