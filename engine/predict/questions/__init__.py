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

from meshwave.engine.predict.questions.action_query import Query, parse_query
from meshwave.engine.predict.questions.critical_path import Path
from meshwave.engine.predict.questions.idle_time import Idle, Part
from meshwave.engine.predict.questions.inspector import Inspector
from meshwave.engine.predict.questions.stage_work import Work, work
from meshwave.engine.predict.questions.time_breakdown import Area, MeshTime
from meshwave.engine.predict.questions.what_if import Change, WhatIf, what_if, what_ifs

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
