"""Analysis of a timeline: time breakdown, causes of idle time, and changes that would shorten the step.

========================  ===========================================================================
:class:`Inspector`        analysis of one timeline: time breakdown, idle gap, critical path, search
:func:`changed_makespan`  makespan with changed costs
:func:`rank_changes`      changes that could shorten the step, with the time that each of them saves
:func:`slow_step`         step time with slow devices, slow links and jitter
:func:`parse_query`       parser of a search such as ``3F7``, ``B of stage 2`` or ``mesh C``
:func:`stage_flops`       FLOPs of all computations
========================  ===========================================================================

This package depends on neither schedules nor the page: the command line and the designer use the same functions.
"""

from meshwave.engine.predict.questions.action_query import Query, parse_query
from meshwave.engine.predict.questions.critical_path import CriticalPath
from meshwave.engine.predict.questions.idle_time import Idle, IdlePart
from meshwave.engine.predict.questions.inspector import Inspector
from meshwave.engine.predict.questions.slowdown import Slowdown, SlowStep, slow_step, slow_timeline
from meshwave.engine.predict.questions.stage_work import Work, stage_flops
from meshwave.engine.predict.questions.time_breakdown import Area, MeshTime
from meshwave.engine.predict.questions.what_if import Change, WhatIf, changed_makespan, rank_changes
