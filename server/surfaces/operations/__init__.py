"""Routes for operators, probes and scrapers, and the page of GET /ui."""
