"""How models mark their thoughts: formats as data, chosen from the chat template."""
