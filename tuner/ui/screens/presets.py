"""Presets: recipes that come with the tuner and the operator's own; Enter takes one to the Tune screen."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec
from textual import events, on, work
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.reactive import reactive, var
from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tuner.modelcard import ModelError
from tuner.paths import HomeError, list_presets, packaged_presets
from tuner.planner.model import CannotPlan, Plan
from tuner.recipe import load
from tuner.recipe.model import Recipe, RecipeError
from tuner.redact import redact
from tuner.rounds.errors import HistoryError
from tuner.text import clip, fitted, plain, width
from tuner.ui.bench import FlagChange, flag_changes
from tuner.ui.preview import Preview, preview
from tuner.ui.round_actions import export_preset
from tuner.ui.screens.base import Place
from tuner.ui.widgets.findings_list import findings_text
from tuner.ui.widgets.row_list import RowList, list_cells
from tuner.ui.widgets.sheet import Sheet
from tuner.ui.wording import BINDS, basis, flag_value

#: Cells of a flag's name, and of what the plan counts.
_FLAG, _NAME = 30, 18
_WIDE = 90
#: Rows from which on the plan is a table.
_TALL = 32
_HERE = Content.assemble(("Here it would give", "bold $primary"))


class Preset(msgspec.Struct, frozen=True):
    """A recipe file, or the sentence that says why it is none."""

    name: str
    path: str
    own: bool
    recipe: Recipe | None = None
    problem: str = ""

    @property
    def about(self) -> str:
        """The comment at the head of the file."""
        text = self.recipe.source_text if self.recipe is not None else None
        lines = []
        for line in (text or "").splitlines():
            if not line.startswith("#"):
                break
            lines.append(line.lstrip("# ").rstrip())
        return "\n".join(lines).replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n")


class PresetText(Sheet):
    """One preset in full: what it is, what it would give here, what it changes, what it sets."""

    preset: reactive[Preset | None] = reactive(None, layout=True)
    planned: reactive[Preview | None] = reactive(None, layout=True)
    changes: reactive[tuple[FlagChange, ...]] = reactive((), layout=True)
    roomy: reactive[bool] = reactive(False, layout=True)

    def text(self, cells: int) -> Content:
        """The file's own words first."""
        preset = self.preset
        if preset is None:
            return Content.assemble(("No preset.", "$foreground 70%"))
        about = f"  your own · {plain(preset.path)}" if preset.own else "  comes with the tuner"
        lines = [Content.assemble((preset.name, "bold $primary"), (about, "$foreground 60%"))]
        if preset.problem:
            return Content("\n").join(
                [*lines, Content.assemble(("✗ ", "bold $error"), (plain(preset.problem), "$error"))]
            )
        if preset.about:
            lines.append(Content(plain(preset.about)))
        lines += [Content(""), *_given(self.planned, cells, roomy=self.roomy)]
        lines += [Content(""), *_changed(self.changes, cells)]
        if preset.recipe is not None:
            lines += [Content(""), *_settings(preset.recipe, cells)]
        return Content("\n").join(lines)


class PresetsScreen(Place):
    """A list of recipes, and the one under the cursor."""

    mode = "presets"
    purpose = "Recipes to start from: those that come with the tuner, and your own."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("u", "use", "Use", tooltip="Take this preset to the Tune screen, also by Enter", id="presets.use"),
        Binding("space", "more", "More", tooltip="A page further in the text below", id="presets.more"),
        Binding(
            "e",
            "export",
            "Export",
            tooltip="Write this preset to a file: systemd service, start script, recipe",
            id="presets.export",
        ),
        Binding("escape", "app.go('tune')", "Tune", show=False, tooltip="Back to the Tune screen", id="presets.back"),
    ]

    presets: var[tuple[Preset, ...]] = var(())

    def body(self) -> Iterable[Widget]:
        """List and detail."""
        yield Container(RowList(id="presets"), VerticalScroll(PresetText(), id="preset", can_focus=False),
                        classes="pair")  # fmt: skip

    def on_mount(self) -> None:
        """Ready to choose."""
        self.query_one(OptionList).focus()

    def on_screen_resume(self) -> None:
        """Reads the folders anew: files may have come or gone."""
        self._load()

    def on_resize(self, event: events.Resize) -> None:
        """Lines are as long as the list is wide."""
        self.query_one(PresetText).roomy = event.size.height >= _TALL
        self.call_after_refresh(self._list)

    @work(thread=True, exclusive=True, group="presets")
    def _load(self) -> None:
        try:
            found = list_presets(self.tuner.session.home)
        except HomeError as error:
            self.app.call_from_thread(self.tuner.say, str(error), severity="error")
            return
        self.app.call_from_thread(setattr, self, "presets", tuple(_read(name, path) for name, path in found.items()))

    def watch_presets(self) -> None:
        """Another list."""
        if self.is_mounted:
            self._list()

    def _list(self) -> None:
        listing = self.query_one(OptionList)
        at = listing.highlighted or 0
        cells = list_cells(listing)
        listing.clear_options()
        listing.add_options(Option(_line(preset, cells)) for preset in self.presets)
        if self.presets:
            listing.highlighted = min(at, len(self.presets) - 1)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        preset = self._chosen()
        text = self.query_one(PresetText)
        if preset == text.preset:
            return
        text.preset, text.planned = preset, None
        recipe = preset.recipe if preset is not None else None
        if recipe is not None:
            bench = self.tuner.bench
            text.changes = flag_changes(bench.draft.flags, bench.loaded(recipe).draft.flags)
            self._plan(recipe)

    @work(thread=True, exclusive=True, group="plan")
    def _plan(self, recipe: Recipe) -> None:
        """What it would give on this machine."""
        try:
            planned = preview(self.tuner.session.planning_inputs(recipe), recipe)
        except (CannotPlan, ModelError, RecipeError, HistoryError, HomeError, OSError) as error:
            planned = Preview(problem=str(error))
        self.app.call_from_thread(self._planned, recipe, planned)

    def _planned(self, recipe: Recipe, planned: Preview) -> None:
        text = self.query_one(PresetText)
        if text.preset is not None and text.preset.recipe is recipe:
            text.planned = planned

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        self.action_use()

    def action_more(self) -> None:
        """A page further."""
        self.turn_page("#preset")

    def action_use(self) -> None:
        """The preset onto the bench."""
        preset = self._chosen()
        if preset is None or preset.recipe is None:
            self.tuner.say("This file is no recipe: see what it says.", severity="warning")
            return
        self.tuner.load(preset.recipe, preset.name)

    def action_export(self) -> None:
        """The preset as a file."""
        preset = self._chosen()
        if preset is None or preset.recipe is None:
            self.tuner.say("This file is no recipe: see what it says.", severity="warning")
            return
        self.tuner.ask(partial(export_preset, self.tuner, preset.name, preset.recipe))

    def _chosen(self) -> Preset | None:
        at = self.query_one(OptionList).highlighted
        return self.presets[at] if at is not None and at < len(self.presets) else None


def _read(name: str, path: Path) -> Preset:
    own = path.parent != packaged_presets()
    try:
        return Preset(name, str(path), own, load(path))
    except RecipeError as error:
        return Preset(name, str(path), own, problem=str(error))


def _line(preset: Preset, cells: int) -> Content:
    recipe = preset.recipe
    model = recipe.model_path.rstrip("/").rsplit("/", 1)[-1] if recipe is not None else "cannot be read"
    mark = "  simulated" if recipe is not None and recipe.simulated else ""
    own = "own " if preset.own else "    "
    name = clip(preset.name, 28)
    return Content.assemble(
        (f" {own}", "$foreground 60%"), (f"{name}{' ' * (30 - width(name))}", "bold"),
        (clip(plain(model), max(8, cells - 36 - len(mark))), "$foreground 80%" if recipe is not None else "$error"),
        (mark, "$warning"),
    )  # fmt: skip


def _given(planned: Preview | None, cells: int, *, roomy: bool) -> list[Content]:
    if planned is None:
        return [Content.assemble(("Planning …", "$foreground 60%"))]
    plan = planned.plan
    if plan is None:
        return [Content.assemble(("! ", "bold $warning"), (f"No plan here: {plain(planned.problem)}", "$warning"))]
    if not plan.fits or not roomy:
        return [Content.assemble(("Here it would give ", ""), (_pools(plan), "bold" if plan.fits else "bold $error"))]
    rows = [("KV tokens", f"{plan.kv_tokens:,}")]
    if plan.bytes_per_slot:
        rows.append(("State slots", f"{plan.mamba_slots:,}"))
    rows += [
        ("Requests", f"{plan.max_running_requests:,}"),
        ("Longest input", f"{plan.longest_input_tokens:,} tokens"),
        ("Free at ready", f"{plan.ready_free_gib:.2f} GiB"),
        ("Binds", BINDS[plan.binds]),
        ("Numbers", basis(plan, cells - _NAME)),
    ]
    lines = [_HERE, *(Content.assemble(f"  {name:<{_NAME - 2}}", (shown, "bold")) for name, shown in rows)]
    return [*lines, findings_text(plan.findings, cells, remedies=0)] if plan.findings else lines


def _pools(plan: Plan) -> str:
    if not plan.fits:
        return "no server: it does not fit into the memory that is free"
    slots = f", {plan.mamba_slots:,} state slots" if plan.bytes_per_slot else ""
    return f"{plan.kv_tokens:,} KV tokens{slots}, {plan.max_running_requests:,} requests"


def _changed(changes: tuple[FlagChange, ...], cells: int) -> list[Content]:
    if not changes:
        return [Content.assemble(("The same flags as on the Tune screen.", "$foreground 70%"))]
    lines = [Content.assemble(("Against the Tune screen", "bold $primary"))]
    old_cells = 18 if cells >= _WIDE else 12
    new_cells = max(12, cells - _FLAG - old_cells - 5)
    lines += [
        Content.assemble(f"  {fitted(c.name, _FLAG)}",
                         (f"{fitted(flag_value(c.name, c.old), old_cells, right=True)} → ", "$foreground 60%"),
                         (clip(flag_value(c.name, c.new), new_cells), "bold $warning"))
        for c in changes
    ]  # fmt: skip
    return lines


def _settings(recipe: Recipe, cells: int) -> list[Content]:
    """Everything that the file sets."""
    rows = [*recipe.flags.items(), *recipe.environment.items()]
    return [
        Content.assemble(("What it sets", "bold $primary")),
        *(
            Content.assemble(
                (f"  {fitted(plain(name), _FLAG)} ", "$foreground 80%"),
                clip(flag_value(name, value), max(12, cells - _FLAG - 3)),
            )
            for name, value in redact(dict(rows)).items()
        ),
    ]
