"""A cache of packed weights: a later start reads a rank's matrices in their memory layout.

The cache is a folder that only the user can access, with one file for each rank and key, written in the background once
the rank serves. A problem with the cache costs a warning and the time of packing again; it never prevents a start.
"""
