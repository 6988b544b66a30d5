"""What to try next, and when to stop: proposals for the next round with their reason, effect and price. Pure.

Names are loaded when first used: what draws an advice need not load what makes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.deferred import names_in

if TYPE_CHECKING:
    from tuner.advice.adviser import advise
    from tuner.advice.model import Advice, DerivedNeed, Effect, Lever, Proposal, Question, Tried
    from tuner.advice.usage import Usage, usage_of

__all__ = ["Advice", "DerivedNeed", "Effect", "Lever", "Proposal", "Question", "Tried", "Usage", "advise", "usage_of"]

__getattr__ = names_in(
    __name__,
    adviser="advise",
    model="Advice DerivedNeed Effect Lever Proposal Question Tried",
    usage="Usage usage_of",
)
