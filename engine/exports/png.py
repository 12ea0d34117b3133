"""PNG export: a timeline drawn without a browser; blocks that are too thin are drawn as shares of pixel columns."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwave.engine.document.links import data_url
from meshwave.engine.exports._base import Export, exports
from meshwave.engine.exports.pictures.palette import rgb
from meshwave.engine.exports.pictures.rows import ShownTimeline, whole_step
from meshwave.engine.exports.pictures.shapes import Box, Hatch, Line, Picture, Shares, Text
from meshwave.engine.exports.pictures.timelines import lay_out_timelines
from meshwave.engine.exports.svg import arrow_head

if TYPE_CHECKING:
    from PIL import Image as Images
    from PIL import ImageDraw as Draws

    from meshwave.engine.predict.prediction import Prediction

PERIOD = 7  # pixels between the lines of the hatch


@exports.register("png")
class Png(Export):
    """Bitmap of the whole timeline."""

    title = "Timeline as PNG"
    note = "bitmap"
    suffix = ".png"
    mime = "image/png"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        return Png.shown_bytes(prediction, whole_step(prediction))

    @classmethod
    def shown_bytes(cls, prediction: Prediction, shown: Sequence[ShownTimeline]) -> bytes:
        design = prediction.design
        picture = lay_out_timelines(shown, title=design.name, unit=prediction.costs.unit)
        return draw_png(picture, comment=f"{data_url(design)}\n")  # the checksum that follows can look like base64


def draw_png(picture: Picture, *, ratio: int = 2, comment: str = "") -> bytes:
    """Return a picture as a PNG.

    Args:
        picture: the picture.
        ratio: pixels of the image per pixel of the layout, as on high-density screens.
        comment: ASCII text stored in the file, such as the document of the design.
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    image = Image.new("RGB", (picture.width * ratio, picture.height * ratio), picture.surface_colours["background"])
    _Painter(picture, image, ratio).paint()
    file = BytesIO()
    info = PngInfo()
    if comment:
        info.add_text("Comment", comment)
    image.save(file, "PNG", optimize=False, pnginfo=info)
    return file.getvalue()


class _Painter:
    """Draws the shapes of a picture into an image with ``ratio`` pixels per pixel of the layout."""

    def __init__(self, picture: Picture, image: Images.Image, ratio: int) -> None:
        from PIL import ImageDraw

        self.picture, self.image, self.ratio = picture, image, ratio
        self.pen: Draws.ImageDraw = ImageDraw.Draw(image)
        self.fonts: dict[float, Any] = {}
        self.hatch = self._hatch_image()

    def paint(self) -> None:
        for shape in self.picture.shapes:
            match shape:
                case Box():
                    self._paint_box(shape)
                case Hatch():
                    self._paint_idle(shape)
                case Line():
                    self._paint_line(shape)
                case Text():
                    self._paint_text(shape)
                case Shares():
                    self._paint_shares(shape)

    def _corners(self, shape: Box | Hatch | Shares) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom; right and bottom are exclusive."""
        x, y, width, height = shape[:4]
        edges = (x, y, x + width, y + height)
        left, top, right, bottom = (round(edge * self.ratio) for edge in edges)
        return left, top, max(right, left + 1), max(bottom, top + 1)

    def _paint_box(self, box: Box) -> None:
        left, top, right, bottom = self._corners(box)
        if box.radius:
            self.pen.rounded_rectangle((left, top, right - 1, bottom - 1), box.radius * self.ratio, box.colour)
        else:
            self.pen.rectangle((left, top, right - 1, bottom - 1), box.colour)

    def _hatch_image(self) -> Images.Image:
        """Return a hatch of the size of the whole picture, so that its lines continue from lane to lane."""
        from PIL import Image

        height, width = self.image.height, self.image.width
        phase = (np.arange(height)[:, None] + np.arange(width)[None, :]) % (PERIOD * self.ratio)
        colours = np.array([rgb(self.picture.surface_colours[name]) for name in ("hatch", "idle")], np.uint8)
        return Image.fromarray(colours[(phase >= self.ratio).astype(np.intp)])

    def _paint_idle(self, hatch: Hatch) -> None:
        corners = self._corners(hatch)
        self.image.paste(self.hatch.crop(corners), corners[:2])

    def _paint_line(self, line: Line) -> None:
        points = [value * self.ratio for value in line[:4]]
        self.pen.line(points, line.colour, max(1, round(line.width * self.ratio)))
        if line.arrow:
            self.pen.polygon([(x * self.ratio, y * self.ratio) for x, y in arrow_head(line)], line.colour)

    def _paint_text(self, text: Text) -> None:
        anchor = {"start": "lm", "middle": "mm", "end": "rm"}[text.anchor]
        font = self._font(text.size)
        bold = self.ratio * 0.35 if text.bold else 0
        place = (text.x * self.ratio, text.y * self.ratio)
        words = text.text.replace("\u202f", " ")  # the font has no narrow space
        self.pen.text(place, words, text.colour, font, anchor=anchor, stroke_width=bold, stroke_fill=text.colour)

    def _font(self, size: float) -> Any:
        from PIL import ImageFont

        if size not in self.fonts:
            self.fonts[size] = ImageFont.load_default(size * self.ratio)
        return self.fonts[size]

    def _paint_shares(self, shares: Shares) -> None:
        """Paint stacked columns: each pixel has the colour of the part of the stack that contains it."""
        from PIL import Image

        left, top, right, bottom = self._corners(shares)
        columns = np.linspace(0, shares.parts.shape[1] - 1, right - left).round().astype(np.intp)
        tops = np.cumsum(shares.parts, axis=0)[:, columns]
        level = (np.arange(bottom - top)[::-1, None] + 0.5) / (bottom - top)
        kind = sum((level >= part).astype(np.intp) for part in tops)
        below = np.asarray(self.image.crop((left, top, right, bottom)))
        self.image.paste(Image.fromarray(_colour_image(kind, shares.colours, below)), (left, top))


def _colour_image(kind: Any, colours: Sequence[str], below: Any) -> Any:
    """Return the colours ``[rows, columns, 3]`` of indices; the index after the last colour leaves the background."""
    table = np.array([*map(rgb, colours), (0, 0, 0)], np.uint8)
    return np.where((kind == len(colours))[..., None], below, table[kind])
