"""The predicted numbers as a Markdown table."""

from typing import ClassVar

from meshwave.engine.exports import Export, exports
from meshwave.engine.predict.prediction import Prediction


@exports.register("markdown")
class Markdown(Export):
    """The predicted numbers of a design as a table."""

    title: ClassVar = "Numbers (Markdown)"
    note: ClassVar = "opens in any editor"
    suffix: ClassVar = ".md"
    mime: ClassVar = "text/markdown"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        numbers = {name: value for name, value in prediction.numbers.items() if isinstance(value, int | float | str)}
        rows = [f"| {name} | {value} |" for name, value in numbers.items()]
        return "\n".join(["| number | value |", "|---|---|", *rows, ""]).encode()
