"""The API of text-embeddings-inference: POST /embed and /predict."""
