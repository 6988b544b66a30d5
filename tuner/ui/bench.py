"""The recipe on the bench: what runs, what is being changed, and the way back. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tuner.recipe.model import Recipe

#: Changes kept for undo.
UNDO_DEPTH = 100


class FlagChange(msgspec.Struct, frozen=True):
    """One flag that differs from the base; None: not set."""

    name: str
    old: Any
    new: Any


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """A draft over a base. The base is the running server's recipe, or the one opened while nothing runs."""

    base: Recipe
    draft: Recipe
    #: How the operator calls the base: "r3", or "" while nothing runs.
    base_name: str = ""
    past: tuple[Recipe, ...] = ()
    future: tuple[Recipe, ...] = ()
    #: Flags the last change touched: turning one knob step by step is one undo.
    touched: frozenset[str] = frozenset()

    @classmethod
    def opened(cls, recipe: Recipe, base_name: str = "") -> Bench:
        """A bench where nothing is changed yet."""
        return cls(base=recipe, draft=recipe, base_name=base_name)

    def changed(self, flags: dict[str, Any]) -> Bench:
        """The bench after a change of flags (None removes one); itself when that changes nothing."""
        draft = self.draft.with_flags(flags)
        if draft.flags == self.draft.flags:
            return self
        touched = frozenset(flags)
        past = self.past if touched == self.touched else (*self.past, self.draft)[-UNDO_DEPTH:]
        return msgspec.structs.replace(self, draft=draft, past=past, future=(), touched=touched)

    def replaced(self, recipe: Recipe) -> Bench:
        """The bench with another round's flags on it; base, environment and interpreter stay."""
        gone = dict.fromkeys(self.draft.flags.keys() - recipe.flags.keys())
        return self.changed({**gone, **recipe.flags})

    def applied(self, flags: dict[str, Any]) -> Bench:
        """The bench after a change that is an undo of its own, whatever was turned before."""
        changed = msgspec.structs.replace(self, touched=frozenset()).changed(flags)
        return msgspec.structs.replace(changed, touched=frozenset())

    def loaded(self, recipe: Recipe) -> Bench:
        """The bench with a whole other recipe on it; while nothing runs it is what changes count against.

        A recipe that names no interpreter keeps the one there is; over a running server the port stays.
        """
        draft = recipe if recipe.python else msgspec.structs.replace(recipe, python=self.draft.python)
        if self.base_name:
            draft = draft.with_flags({"port": self.base.flags.get("port")})
        past = (*self.past, self.draft)[-UNDO_DEPTH:]
        base = self.base if self.base_name else draft
        return msgspec.structs.replace(self, base=base, draft=draft, past=past, future=(), touched=frozenset())

    def undone(self) -> Bench:
        """One change back."""
        if not self.past:
            return self
        *past, draft = self.past
        future = (self.draft, *self.future)
        return msgspec.structs.replace(self, draft=draft, past=tuple(past), future=future, touched=frozenset())

    def redone(self) -> Bench:
        """One change forward again."""
        if not self.future:
            return self
        draft, *future = self.future
        past = (*self.past, self.draft)
        return msgspec.structs.replace(self, draft=draft, past=past, future=tuple(future), touched=frozenset())

    def reset(self, *names: str) -> Bench:
        """These flags (all, when none is named) back to the base's."""
        wanted = names or tuple(self.base.flags.keys() | self.draft.flags.keys())
        return self.changed({name: self.base.flags.get(name) for name in wanted})

    def rebased(self, running: Recipe, base_name: str) -> Bench:
        """The bench when another server runs: what the operator has changed since stays changed."""
        if running.flags == self.base.flags and base_name == self.base_name:
            return self
        changes = {c.name: c.new for c in self.changes()}
        return msgspec.structs.replace(self, base=running, draft=running.with_flags(changes), base_name=base_name)

    def changes(self) -> tuple[FlagChange, ...]:
        """What the draft changes, in the order of the flags."""
        return flag_changes(self.base.flags, self.draft.flags)


def flag_changes(old: dict[str, Any], new: dict[str, Any]) -> tuple[FlagChange, ...]:
    """Flags that differ, those of ``new`` first, in their order."""
    names = [*new, *(name for name in old if name not in new)]
    return tuple(FlagChange(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n))
