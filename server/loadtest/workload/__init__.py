"""The requests of a load, and the times at which they are sent."""
