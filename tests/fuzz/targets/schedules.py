"""Schedules of torch in CSV files, read by ``meshwave import``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from meshwave.engine.exports import exports
from meshwave.engine.predict.prediction import predict
from meshwave.engine.schedules import schedules
from tests._strategies import pipelines
from tests.fuzz.mutate import STRINGS, mutate_bytes
from tests.fuzz.oracle import Act, Complaint, Ended, about_command
from tests.fuzz.target import Target, draw_examples

CELLS = (
    "0F0", "1B0", "0I0", "0W0", "2SEND_F1", "1RECV_F0", "0REDUCE_GRAD", "0UNSHARD", "(0F1;0B0)OVERLAP_F_B", "", "F", "0X0",
    "999999F0", "0F999999", "99999999999999999999F0", "0f0", "-1F0", "0F0 0B0", "\u0663F0", *STRINGS,
)  # fmt: skip
INTO = ("02-two-waves", "16-gpt2-moe", "21-u-net")
"""Designs into which a schedule is imported: with waves, with experts, with skip connections."""


class Schedules(Target):
    """A schedule is refused with the cell of the mistake, or becomes a valid design."""

    is_guided = True
    suffix = ".csv"
    entrance = 1 + len(INTO)

    def seeds(self) -> Iterator[bytes]:
        for pipe in (pipe for name in schedules for pipe in draw_examples(pipelines(name, 4, 4), 3)):
            prediction = predict(pipe.design())
            if prediction.program.replicas == 1:  # others are no file of torch
                yield from (exports[form].to_bytes(prediction) for form in ("torch-csv", "torch-csv-comms"))

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        content = chance.choice(seeds)
        rows = [row.split(",") for row in content.decode().splitlines()]
        for _ in range(chance.choice((0, 1, 1, 2, 5))):
            _change_cells(chance, rows)
        mark = chance.choice((",", ",", ",", ";", "\t"))
        content = "\n".join(mark.join(row) for row in rows).encode("utf-8", "surrogatepass")
        return mutate_bytes(chance, content) if chance.random() < 0.25 else content

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        ended: list[Ended] = []
        yield "import", lambda: about_command("import", str(path), ended=ended)
        for design in INTO:
            yield (
                f"import --into {design}",
                lambda design=design: about_command(  # type: ignore[misc]
                    "import", str(path), "--into", design, ended=ended
                ),
            )
        for made in ended:
            if made.status == 0:
                yield "check what was imported", lambda made=made: check_import(path.with_suffix(".json"), made)  # type: ignore[misc]


def _change_cells(chance: Random, rows: list[list[str]]) -> None:
    if not rows:
        return
    row = chance.choice(rows)
    at = chance.randrange(len(row)) if row else 0
    match chance.randrange(7):
        case 0:
            row[at : at + 1] = [chance.choice(CELLS)]
        case 1:
            row.insert(at, chance.choice(CELLS))
        case 2:
            del row[at : at + 1]
        case 3:
            chance.choice(rows).append(row.pop(at) if row else "")
        case 4 if row:
            other = chance.randrange(len(row))
            row[at], row[other] = row[other], row[at]
        case 5:
            rows.append(list(row))
        case 6:
            rows.remove(row)


def check_import(path: Path, made: Ended) -> Iterator[Complaint]:
    """Check that a design printed by ``import`` is valid."""
    path.write_bytes(made.out)
    ended: list[Ended] = []
    yield from about_command("check", str(path), ended=ended)
    if ended[0].status:
        yield Complaint("an imported design is refused", ended[0].out.decode())


TARGET = Schedules()
