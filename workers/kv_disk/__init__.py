"""The disk tier of a rank: cached pages and anchors in files, moved by threads that run alongside the steps."""
