"""Rack-aware placement at least cost (KIP-925)."""
