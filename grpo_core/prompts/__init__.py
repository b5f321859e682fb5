"""Prompts: read from a source, filtered and split, planned round by round."""
