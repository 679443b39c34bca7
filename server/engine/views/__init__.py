"""Views of the engine for other parts: reports, gauges, profiles and traces."""
