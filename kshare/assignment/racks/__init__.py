"""Rack-aware placement at least cost. Only this package uses numpy and scipy."""
