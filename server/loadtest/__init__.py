"""The load test of a server of the OpenAI API, as its clients see it. Needs neither torch nor the engine."""
