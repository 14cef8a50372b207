"""Depth of many posed views that agrees from view to view."""
