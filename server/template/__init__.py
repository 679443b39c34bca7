"""The process that renders a model's chat template. Nothing here imports more than jinja2, the standard library, and
what confines it."""
