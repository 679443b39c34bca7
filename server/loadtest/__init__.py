"""Load on a server that speaks the OpenAI API, and what its clients saw. Needs neither torch nor the engine."""
