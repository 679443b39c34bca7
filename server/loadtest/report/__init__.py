"""The figures of a load: statistics, comparisons, tables and plots."""
