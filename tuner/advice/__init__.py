"""What to try next, and when to stop: proposals for the next round with their reason, effect and price. Pure."""

from tuner.advice.advise import advise
from tuner.advice.model import Advice, DerivedNeed, Effect, Lever, Proposal, Question, Tried
from tuner.advice.usage import Usage, usage_of

__all__ = ["Advice", "DerivedNeed", "Effect", "Lever", "Proposal", "Question", "Tried", "Usage", "advise", "usage_of"]
