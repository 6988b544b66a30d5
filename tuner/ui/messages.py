"""What threads tell the app. Each carries one frozen value; widgets derive the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

from tuner.planner.accuracy import Accuracy
from tuner.planner.model import PlanInputs
from tuner.recipe.model import Recipe
from tuner.session.events import Event

if TYPE_CHECKING:
    from tuner.session.watching import Look


class LookArrived(Message):
    """One poll of the server and the card. ``starter``: the process of another tuner in the middle of this round."""

    def __init__(self, look: Look, starter: int | None = None) -> None:
        self.look = look
        self.starter = starter
        super().__init__()


class LookFailed(Message):
    """A poll could not be made; ``problem`` is one sentence."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__()


class Happened(Message):
    """The session at work has news."""

    def __init__(self, event: Event) -> None:
        self.event = event
        super().__init__()


class WorkEnded(Message):
    """A round, a verification or a stop is over. ``problem``: why it could not be done, one sentence, or empty."""

    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        super().__init__()


class InputsArrived(Message):
    """What plans of ``recipe``'s model need, or the sentence that says why there is none.

    ``accuracy``: how far the plans of the last rounds were off, newest first. ``turn`` counts the gatherings: of two
    that end in the wrong order the one begun later holds.
    """

    def __init__(
        self,
        recipe: Recipe,
        inputs: PlanInputs | None,
        problem: str = "",
        accuracy: tuple[tuple[str, Accuracy], ...] = (),
        turn: int = 0,
    ) -> None:
        self.recipe = recipe
        self.inputs = inputs
        self.problem = problem
        self.accuracy = accuracy
        self.turn = turn
        super().__init__()
