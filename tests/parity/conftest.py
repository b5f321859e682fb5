"""Parity with other libraries. They can't be installed beside this project; an environment that has them runs it:

PYTHONPATH=. python -m pytest tests/parity -m parity
"""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "parity: against trl or verl; skipped where they are not installed")
