"""Low-rank adapters (LoRA; Hu et al., 2021): their files, and their places in the matrices of a model."""
