"""The process that renders a model's chat template. It imports only jinja2, the standard library and its
confinement."""
