"""A table of the stages, as an ordinary pane of Panel."""

from typing import ClassVar

import panel as pn

from meshwave.designer.views import View, views


@views.register("stages")
class StagesView(View):
    """The layers and the mesh of every stage."""

    title: ClassVar = "Stages"
    key: ClassVar = "n"

    def make_pane(self) -> pn.pane.Markdown:
        self.table = pn.pane.Markdown()
        self.page.session.param.watch(lambda *_: self.show(), "prediction")
        self.show()
        return self.table

    def show(self) -> None:
        prediction = self.page.session.prediction
        if prediction is None:
            self.table.object = "The design has no stages yet."
            return
        meshes = prediction.design.meshes
        route, layers = prediction.program.placement[0].tolist(), prediction.costs.layers
        rows = [f"| {stage} | {meshes[route[stage]].name} | {count} |" for stage, count in enumerate(layers)]
        self.table.object = "\n".join(["| stage | mesh | layers |", "|--:|---|--:|", *rows])
