"""Runs a list of operations in torch, fused or not: slow, on any processor, and near to what the operations mean.

It is what kernels and fusions are compared with, and a backend with which a model can be served before its kernels
exist. It promises tolerance, not bits.
"""
