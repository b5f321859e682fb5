"""The algorithm of GRPO rounds: pure library code, importable without Prefect and MLflow."""
