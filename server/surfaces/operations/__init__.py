"""Routes for operators, probes and scrapers, and the page at GET /ui."""
