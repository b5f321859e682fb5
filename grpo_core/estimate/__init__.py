"""What a run will need, before it starts: bytes a stage, tokens, seconds, disk. Formulas and a traced pass, no weights."""
