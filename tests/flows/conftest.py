"""MLflow's tables from a copy here too."""

import pytest
import stores


@pytest.fixture(scope="session", autouse=True)
def copied_tables() -> None:
    stores.copy_tables()
