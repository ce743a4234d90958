"""Signals, drain, and the health port."""
