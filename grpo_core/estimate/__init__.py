"""What a run will need, before it starts: bytes a stage, tokens, seconds, disk. By formulas and a traced pass."""
