"""The live requests: those that have been admitted and have not ended."""
