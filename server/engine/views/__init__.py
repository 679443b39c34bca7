"""The engine as others see it: reports, gauges, profiles and traces."""
