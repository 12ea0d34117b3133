"""Questions to a timeline: where its time goes, what a mesh waits for, what would make the step shorter.

=====================  ==============================================================================
:class:`Inspector`     asks one timeline: an area, an idle gap, the critical path, a search
:func:`what_if`        a change of costs, simulated anew
:func:`what_ifs`       the changes that could make a step shorter, with what each one brings
:func:`parse_query`    what a person searches for: ``3F7``, ``B of stage 2``, ``mesh C``
:func:`work`           the FLOPs of every computation
=====================  ==============================================================================

Nothing here knows of a schedule or a page: the command line and the designer ask the same questions.
"""

from engine.inspect.area import Area, MeshTime
from engine.inspect.idle import Idle, Part
from engine.inspect.inspector import Inspector
from engine.inspect.path import Path
from engine.inspect.search import Query, parse_query
from engine.inspect.what_if import Change, WhatIf, what_if, what_ifs
from engine.inspect.work import Work, work

__all__ = [
    "Area",
    "Change",
    "Idle",
    "Inspector",
    "MeshTime",
    "Part",
    "Path",
    "Query",
    "WhatIf",
    "Work",
    "parse_query",
    "what_if",
    "what_ifs",
    "work",
]
