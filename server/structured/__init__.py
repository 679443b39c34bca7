"""Grammars: clients' constraints on answers, compiled to masks of tokens by llguidance."""
