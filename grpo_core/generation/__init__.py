"""Rollouts: what an engine is, and the engines."""
