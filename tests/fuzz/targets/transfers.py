"""Transfer documents of one or several tensors, read by ``meshwave reshard`` and the transfer lab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from meshwave.designer.state import transfer_links as edits
from meshwave.engine.cli.transfers import to_text
from tests.engine.document.test_extremes import TRANSFER, TRANSFERS
from tests.fuzz.oracle import LONGEST_PRINTED, Act, Ended, about_command, about_text
from tests.fuzz.target import Target


class Transfers(Target):
    """Every plan of a transfer, as JSON and as text."""

    is_guided = True

    def seeds(self) -> list[bytes]:
        cases = [document for _, document in edits.starting_transfers().values()]
        return [json.dumps(document).encode() for document in (TRANSFER, TRANSFERS, *cases)]

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        ended: list[Ended] = []
        yield "reshard --json", lambda: about_command("reshard", str(path), "--json", ended=ended)
        if ended and ended[0].status == 0:
            yield "reshard", lambda: about_text("\n".join(to_text(json.loads(ended[0].out))), LONGEST_PRINTED)


TARGET = Transfers()
