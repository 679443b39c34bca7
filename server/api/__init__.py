"""The HTTP layer: OpenAI's API over an engine and a tokenizer; it knows neither how tokens are made nor where."""
