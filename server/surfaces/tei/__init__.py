"""The API of text-embeddings-inference: POST /embed, /embed_sparse and /predict."""
