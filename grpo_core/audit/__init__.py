"""Questions to a run's tables, answered by DuckDB where the files lie."""
