"""A branch: a run of its own whose first artifacts are another run's, as ``branch.json`` in its folder says.

Its stages are those of any run. What they read that the branch does not make comes out of the parent's folder, which is
never written.
"""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from grpo_core.errors import UserError
from grpo_core.overlay import Overlay
from grpo_core.storage import Store

BRANCH = "branch.json"
BRANCHES = "branches"  # the folder in a run that holds its branches
_INSIDE = "../.."  # the parent of a branch that lies there, so that the run can be moved


@dataclass(frozen=True, slots=True)
class Branch:
    """What a branch makes by itself: rewards, advantages and policies of its rounds, and the last one's evaluation."""

    parent: str  # URI
    parent_id: str  # the parent's identity
    first: int  # rounds, both included
    last: int
    rewards: bool  # False: the parent's
    policies: bool
    evaluation: bool
    differs: Mapping[str, Any]  # config key -> value in the parent and here
    digests: Mapping[str, str]  # artifact of the parent that is read -> its digest
    created: str

    def owns(self, relative: str) -> bool:
        """Whether a path belongs to the branch's own folder; all else is read from the parent's.

        What comes after a changed artifact is never the parent's: it is the branch's own, or it is not there.
        """
        top, *inner = relative.split("/")
        if top.startswith("prompts"):  # the pools of sources that joined later, too
            return False
        if top != "rounds" or len(inner) < 2 or not inner[0].isdigit():
            return True
        number, name = int(inner[0]), inner[1]
        if number < self.first:
            return False
        borrowed = (
            {"rollouts", "labels"} | (set() if self.rewards else {"rewards"}) | ({"gates"} if self.policies else set())
        )
        return not (name in borrowed or name.startswith("plan."))

    def makes(self, stage: str, round_number: int) -> bool:
        """Whether a stage, by its name, is one of the branch's own in a round."""
        if not self.first <= round_number <= self.last:
            return False
        made = {
            "score_rewards": self.rewards,
            "compute_advantages": True,
            "update_policy": self.policies,
            "evaluate_policy": self.evaluation and round_number == self.last,
        }
        return made.get(stage, False)

    def to_bytes(self, folder: str) -> bytes:
        """As ``branch.json`` of a folder."""
        told = asdict(self)
        if posixpath.dirname(posixpath.dirname(folder)) == self.parent:
            told["parent"] = _INSIDE
        return (json.dumps(told, indent=1, sort_keys=True) + "\n").encode()


def read_branch(store: Store) -> Branch | None:
    """The branch that a folder holds; None for any other folder. Raises UserError for a harmed ``branch.json``."""
    try:
        told = json.loads(store.read_bytes(BRANCH))
        if told["parent"] == _INSIDE:
            told["parent"] = posixpath.dirname(posixpath.dirname(store.uri))
        return Branch(**told)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{store.uri}/{BRANCH}' is damaged; remove that folder and make the branch again with rescore."
        ) from error


def open_store(uri: str) -> Store:
    """The store of a run; a branch's reads what is not its own from its parent, which may be a branch itself."""
    own = Store(uri)
    branch = read_branch(own)
    return own if branch is None else Overlay(own, open_store(branch.parent), branch.owns)


def origin(uri: str) -> str:
    """The run that stands alone at the root of a branch, or of a branch of one; any other run is its own."""
    branch = read_branch(Store(uri))
    return uri if branch is None else origin(branch.parent)
