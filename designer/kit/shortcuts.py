"""Commands of the page: one list for the keyboard help, the command palette and the context menus of the canvases."""

from __future__ import annotations

from typing import NamedTuple


class Shortcut(NamedTuple):
    """Line of the keyboard help, and of the command palette if it has a command."""

    group: str
    keys: str
    does: str
    command: str = ""
    """Command of the top bar, or ``KEY`` for a key that the canvas of the group handles."""


KEY = "key"
SHORTCUTS = (
    Shortcut("Design", "Ctrl+K", "all commands", "commands"),
    Shortcut("Design", "Ctrl+Z", "undo", "undo"),
    Shortcut("Design", "Ctrl+Shift+Z, Ctrl+Y", "redo", "redo"),
    Shortcut("Design", "Ctrl+O", "open a design, a schedule or a trace", "open"),
    Shortcut("Design", "Ctrl+S", "save", "save"),
    Shortcut("Design", "P", "pin or unpin for comparison", "pin"),
    Shortcut("Design", "V", "compare side by side", "compare"),
    Shortcut("Design", "G", "gallery of schedules", "gallery"),
    Shortcut("Design", "X", "show experts or cluster", "experts"),
    Shortcut("Design", "L", "focus the launch button", "launch"),
    Shortcut("Design", "F6", "go to the next pane, with Shift to the previous one", "panes"),
    Shortcut("Design", "F1", "help on the element under the pointer or focus"),
    Shortcut("Design", "?", "keyboard help", "help"),
    Shortcut("Fields", "Enter", "apply the input"),
    Shortcut("Fields", "Esc", "discard the input"),
    Shortcut("Cluster", "Arrows", "move between devices"),
    Shortcut("Cluster", "Shift+Arrows", "select devices"),
    Shortcut("Cluster", "Enter", "draw a mesh on the selected devices", KEY),
    Shortcut("Cluster", "+, -, 0", "zoom a large cluster, show all of it"),
    Shortcut("Cluster", "F2", "rename the mesh", KEY),
    Shortcut("Cluster", "Delete", "delete the mesh", KEY),
    Shortcut("Experts", "Space, Arrows, Enter", "pick up, move, drop"),
    Shortcut("Experts", "W, S, 0", "zoom in, zoom out, show everything"),
    Shortcut("Experts", "R", "replicate the expert", KEY),
    Shortcut("Experts", "Delete", "remove the replica", KEY),
    Shortcut("Experts", "+", "increase the load of the expert", KEY),
    Shortcut("Experts", "-", "decrease the load of the expert", KEY),
    Shortcut("Experts", "B", "balance the experts", KEY),
    Shortcut("Experts", "Shift+B", "place the experts in equal blocks", KEY),
    Shortcut("Wave", "Arrows", "move between stages and skip connections"),
    Shortcut("Wave", "W, S, 0", "zoom in, zoom out, show everything"),
    Shortcut("Wave", "Alt+Left", "move a layer to the previous stage", KEY),
    Shortcut("Wave", "Alt+Right", "move a layer to the next stage", KEY),
    Shortcut("Wave", "Alt+Up", "move the stage to the mesh above", KEY),
    Shortcut("Wave", "Alt+Down", "move the stage to the mesh below", KEY),
    Shortcut("Timeline", "W, S", "zoom in and out"),
    Shortcut("Timeline", "A, D", "pan left and right"),
    Shortcut("Timeline", "0", "show the whole step", KEY),
    Shortcut("Timeline", "Space", "play the step", KEY),
    Shortcut("Timeline", "/", "find blocks", KEY),
    Shortcut("Timeline", "J, K", "move between blocks"),
    Shortcut("Timeline", "Enter, F", "pin a block, zoom to it"),
    Shortcut("Timeline", "C", "show the critical path", KEY),
    Shortcut("Timeline", "T", "show transfers", KEY),
    Shortcut("Timeline", "M", "show memory", KEY),
    Shortcut("Timeline", "L", "show links", KEY),
    Shortcut("Timeline", "E", "edit the order by hand", KEY),
    Shortcut("Timeline", "?", "all keys of the timeline"),
)


def canvas_commands(group: str) -> list[dict[str, str]]:
    """Return the commands of a canvas as entries of its context menu."""
    return [{"keys": each.keys, "does": each.does} for each in SHORTCUTS if each.group == group and each.command == KEY]
