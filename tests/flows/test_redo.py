"""What a schedule may not do by itself: make finished rounds again because of an older config."""

import pytest

from flows.changes import refuse_to_redo
from grpo_core.errors import UserError
from tasks.run import open_run


def test_a_config_that_would_make_finished_rounds_again_is_refused_by_its_keys(finished_run):
    own = open_run(str(finished_run)).config
    refuse_to_redo(own, str(finished_run))
    refuse_to_redo(own.model_copy(update={"rounds": 9}), str(finished_run))
    older = own.model_copy(update={"update": own.update.model_copy(update={"learning_rate": 0.5})})
    with pytest.raises(UserError, match=r"update\.learning_rate.*update_policy of rounds 1 to 2 first.*serve") as found:
        refuse_to_redo(older, str(finished_run))
    assert str(finished_run) in str(found.value)
    refuse_to_redo(older, str(finished_run / "nothing-here"))
