"""A password in the address of MLflow's store is shown nowhere."""

import pytest

from grpo_core.config import TrackingConfig
from grpo_core.errors import UserError
from tasks.tracking_place import place_of


@pytest.mark.parametrize(
    "uri", ["htps://me:secret@host", "https://me:secret[@host", "https:/me:secret@host", "mongo://host?password=secret"]
)
def test_an_address_that_is_refused_keeps_its_password_to_itself(tmp_path, monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match=r"^MLFLOW_TRACKING_URI is ") as refused:
        place_of(str(tmp_path / "run"), TrackingConfig())
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "uri", ["postgresql://me:secret@host/db", "postgresql://host/db?user=me&password=secret&sslmode=require"]
)
def test_what_a_store_says_is_shown_without_the_password(tmp_path, monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    place = place_of(str(tmp_path / "run"), TrackingConfig())
    assert "secret" not in place.ui_command
    assert place.reason(OSError(f"no {uri}\nmore")) == f"no {uri}".replace("secret", "***")
    assert "sec" not in place.reason(OSError(f"{'x' * (200 - uri.index('secret') - 3)}{uri}"))
    assert place.reason(OSError()) == "OSError"
