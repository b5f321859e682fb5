"""Verdicts, rewards, and the workers that check answers."""
