"""Messages about lessons: their folders, steps and checks."""

from __future__ import annotations

from meshwave.engine.messages import Message


def _answer_not_a_number(unit: str) -> str:
    return f"type a number{f' in {unit}' if unit else ''}, such as 12.5"


MESSAGES: dict[str, Message] = {
    "no_open_lesson": "no lesson is open; choose one from the list",
    "no_option_chosen": "choose one of the options",
    "answer_not_a_number": _answer_not_a_number,
    "entry_with_problems": "the open design has a problem; see the tab Problems",
    "not_a_better_score": "{score} is not better than your best score",
    "unwritable_workshop": "cannot save the workshop in {folder}: {reason}",
    "not_a_design": "{file} is not a design",
    "no_class_step": "the teacher has not chosen a step",
    "lesson_unreadable": "the file cannot be read: {reason}",
    "lesson_not_text": "the file is not text; save it as text in UTF-8",
    "lesson_too_large": "{size:,} bytes exceed the limit of {limit:,} bytes",
    "lesson_without_front_matter": "the file has no front matter; put TOML between two +++ lines at the top",
    "lesson_without_steps": "the lesson has no steps; a heading such as '## First step' starts one",
    "lesson_too_many_steps": "{count} steps are too many; the limit is {limit}",
    "lesson_second_block": "the step has {count} blocks of TOML; put all its keys into one",
    "lesson_unknown_name": "unknown {noun} {name!r}. {known:hint}",
    "lesson_design_cycle": "the design {name!r} is its own base; start from a file or an example",
    "lesson_design_source": "the design {name!r} needs exactly one of 'file', 'example' and 'base'; it has {count}",
    "lesson_design_size": "{computations:,} computations are too many for a lesson; the limit is {limit:,}",
    "lesson_placeholder": (
        "{text} is not a valid placeholder; write a design, a colon, a number and a unit, such as start: bubble_ratio %"
    ),
    "lesson_no_number": "{name} is not available for the design {design!r}: unit costs give neither seconds nor MFU; use roofline costs",
    "lesson_choice_answer": "a choice needs either 'right', or 'number' and 'best' with a design for each option",
    "lesson_choice_tie": "the options are equal; add an option with same = true",
    "lesson_condition_value": "a condition needs either 'value' or 'of'",
    "lesson_hints": "the step has {count} hints; use at most {limit}, each with more help than the previous one",
    "lesson_right_refused": "the right answer, {answer}, is refused",
    "lesson_wrong_accepted": "the wrong answer, {answer}, is accepted",
    "lesson_start_passes": "the design {design!r} that the step starts from already passes",
    "lesson_task_without_start": "a task needs a design to start from",
    "lesson_solution_fails": "the solution {design!r} does not pass: {conditions}",
    "workshop_condition_of": "a condition of a challenge compares with a 'value'; 'of' is for lessons",
    "workshop_wrong_code": "this is not the code of the workshop; the teacher's screen shows it",
    "workshop_name_taken": "the name {name!r} is already taken; choose another one, or ask the teacher to remove it",
    "workshop_full": "the workshop is full: {people} people have joined",
    "workshop_name": "type a name of 1 to {longest} characters",
    "workshop_fixed_key": "{key!r} is fixed in this challenge; restore its value, or open the initial design again",
    "workshop_condition_unmet": "the design does not meet this condition: {condition}; it has {value}",
    "workshop_no_score": "{number!r} is not available for this design; choose a cost model in seconds",
    "workshop_not_begun": "the workshop {name!r} has no results yet; serve it first",
    "workshop_is_served": "a server of the workshop {name!r} is running; stop it first",
    "workshop_unknown_person": "this person has left the workshop",
}
