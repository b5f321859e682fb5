"""What people say of rollouts: labels, and what follows from them for verdicts, golds and tiers."""
