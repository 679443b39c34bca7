"""The results of pooled sequences, in the form that a plan asks for."""

import numpy as np
from numaserve.workers.interface.protocol import SeqPlan
from numaserve.workers.interface.vectors import SparseEntries
from numaserve.workers.layers.decoder import Decoder


def check_form(seq: SeqPlan, decoder: Decoder) -> None:
    """Raise `ValueError` for a form of vectors that the model of `decoder` does not have."""
    if seq.vector_form == "sparse" and decoder.masked_head is None:
        raise ValueError(f"slot {seq.slot} of the step asks for a sparse vector, and the model has none")


def in_form(seq: SeqPlan, vector: bytes) -> bytes:
    """Return the `vector` of a sequence, fp32, in the form that its plan asks for."""
    return vector if seq.vector_form == "whole" else SparseEntries.of_vector(np.frombuffer(vector, "<f4")).encoded()
