"""The command ``people``: make the token and the entry of a person who may use a server."""

from __future__ import annotations

import argparse
import sys

from meshwave.engine.people.people_file import Role, add_person, new_person


def add_person_entry(options: argparse.Namespace) -> int:
    """Add a person to the file, or print the entry, and show the new token, which is stored nowhere."""
    role = Role(options.role)
    if options.file:
        token = add_person(options.file, options.name, role)
    else:
        token, table = new_person(options.name, role)
        print(table, flush=True)
    print(f"The token of {options.name}, which is shown only now:\n\n    {token}\n", file=sys.stderr)
    return 0
