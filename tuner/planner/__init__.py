"""Pure arithmetic: what an SGLang start would give, before it is started."""

from tuner.planner.forward import plan
from tuner.planner.model import CannotPlan, Plan, PlanInputs

__all__ = ["CannotPlan", "Plan", "PlanInputs", "plan"]
