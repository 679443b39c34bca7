"""A cache of packed weights: a second start reads a rank's matrices as they lie in memory.

A folder of the user's own, one file for each rank and key, written in the background once the rank serves. Whatever is
wrong with it costs a warning and the time of packing again, never the start.
"""
