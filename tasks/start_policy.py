"""From which round's policy and optimiser state a round starts."""

from tasks.promotion_record import decision_about, has_evaluation, promotion_folder
from tasks.run import Run
from tasks.stage import InputMissing


def start_of(run: Run, round_number: int) -> int:
    """The round whose policy and trainer state this one starts from.

    The round before; or the champion's, where ``promotion.go_back`` asks for that and the policy of the round before
    was refused.

    Raises:
        InputMissing: that policy is still to be decided about.
    """
    before = round_number - 1
    wanted = run.config.promotion.go_back
    if wanted == "never" or before % run.config.evaluation.every:
        return before
    record = decision_about(run, before)
    if record is None:
        if has_evaluation(run, before):
            raise InputMissing(promotion_folder(before))
        return before
    found = record["training"]
    goes_back = found["is_worse"] if wanted == "when_worse" else found["decision"] == "refused"
    return int(found["champion_after"]["round"]) if goes_back else before
