"""``make fuzz``: read damaged inputs of every kind for some minutes, and report failures."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from tests.fuzz.campaign import Limit, fuzz, replay, table
from tests.fuzz.target import NAMES


def main(arguments: list[str]) -> int:
    """Run the fuzzer and return the exit status: 1 if something failed, else 0."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="for all targets together; default: 5")
    parser.add_argument("--inputs", type=int, metavar="N", help="of each target, however long they take")
    parser.add_argument("--seed", type=int, help="of the random numbers; default: another one each time")
    parser.add_argument("--only", metavar="TARGET,...", default=",".join(NAMES), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--replay", metavar="FILE", type=Path, help="read one input again; its folder names the target")
    options = parser.parse_args(arguments)
    if options.replay:
        return replay(options.replay)
    names = options.only.split(",")
    if unknown := sorted({*names} - {*NAMES}):
        parser.error(f"unknown target: {', '.join(unknown)} (known: {', '.join(NAMES)})")
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    amount = f"{options.minutes:g} min" if options.inputs is None else f"{options.inputs} inputs each"
    print(f"seed {seed}, {amount} for {', '.join(names)}", flush=True)
    limit = Limit(60 * options.minutes / len(names)) if options.inputs is None else Limit(inputs=options.inputs)
    tallies = []
    for name in names:
        tallies.append(fuzz(name, limit, seed))
        print(f"{name}: {tallies[-1].inputs} inputs", flush=True)
    print(f"\n{table(tallies)}")
    return 1 if any(tally.failures for tally in tallies) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
