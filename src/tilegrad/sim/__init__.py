"""Predict what a schedule costs: bytes over time, seconds, addresses."""
