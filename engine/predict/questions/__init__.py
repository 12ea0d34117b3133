"""Questions to a timeline: where its time goes, what a mesh waits for, what would make the step shorter.

=====================  ==============================================================================
:class:`Inspector`     asks one timeline: an area, an idle gap, the critical path, a search
:func:`changed_makespan`        a change of costs, simulated anew
:func:`rank_changes`       the changes that could make a step shorter, with what each one brings
:func:`parse_query`    what a person searches for: ``3F7``, ``B of stage 2``, ``mesh C``
:func:`stage_flops`           the FLOPs of every computation
=====================  ==============================================================================

Nothing here knows of a schedule or a page: the command line and the designer ask the same questions.
"""

from meshwave.engine.predict.questions.action_query import Query, parse_query
from meshwave.engine.predict.questions.critical_path import CriticalPath
from meshwave.engine.predict.questions.idle_time import Idle, IdlePart
from meshwave.engine.predict.questions.inspector import Inspector
from meshwave.engine.predict.questions.stage_work import Work, stage_flops
from meshwave.engine.predict.questions.time_breakdown import Area, MeshTime
from meshwave.engine.predict.questions.what_if import Change, WhatIf, changed_makespan, rank_changes

__all__ = [
    "Area",
    "Change",
    "CriticalPath",
    "Idle",
    "IdlePart",
    "Inspector",
    "MeshTime",
    "Query",
    "WhatIf",
    "Work",
    "changed_makespan",
    "parse_query",
    "rank_changes",
    "stage_flops",
]
