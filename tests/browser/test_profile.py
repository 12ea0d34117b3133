"""Calibration profiles on the page: this machine is calibrated, and the design uses the profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import panel as pn
import pytest
from playwright.sync_api import expect

from meshwave.designer.forms import Form
from meshwave.designer.state.background_calibration import BackgroundCalibration
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.jobs import page_callback_scheduler
from meshwave.designer.views.profiles import Profiles
from meshwave.engine.costs.profile_store import store_profile
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.runtime.calibration import CalibrationOptions, calibrate_machine
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster
from tests.browser.gestures import eventually
from tests.engine.costs.profiles import contention, example_profile

if TYPE_CHECKING:
    from tests.browser.conftest import Stage

pytestmark = [pytest.mark.browser, pytest.mark.torch]
LONG_MS = 60_000
LINKS = CalibrationOptions(ProcessCluster(1, 2), [(2, 2)], ("links",), rounds=1)
"""A calibration that takes only seconds."""


@pytest.mark.nightly
def test_a_calibration_profile_is_measured_shown_and_used(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    session = Session(load_design(example("01-first-wave")))
    calibrating = BackgroundCalibration(lambda wanted, heard: calibrate_machine(LINKS, heard))

    def make() -> pn.Row:
        assert pn.state.curdoc is not None
        views = Profiles(session, calibrating, lambda: form.refresh(), page_callback_scheduler(pn.state.curdoc))
        form = Form(session, on_profiles=views.open, width=320, height=700)
        return pn.Row(form, views)

    page = stage.show(make)
    dialog = page.get_by_role("dialog", name="Calibration profiles")

    page.get_by_role("button", name="Calibration profiles").click()
    expect(dialog.get_by_role("region", name="About calibration")).to_contain_text("about two minutes")
    name = dialog.get_by_role("textbox", name="Profile name")
    name.fill(" ")
    dialog.get_by_role("button", name="Calibrate this machine").click()
    expect(dialog.get_by_role("alert")).to_have_text("enter a name for the profile, such as this-machine")
    expect(name).to_be_focused()
    assert not calibrating.status.is_running
    page.keyboard.press("Escape")
    store_profile(example_profile(contention=(contention(),)), "known.json")

    page.get_by_role("button", name="Calibration profiles").click()
    expect(dialog.get_by_role("region", name="About calibration")).to_be_hidden()
    expect(dialog.locator("svg circle")).to_have_count(5)  # one size in five phases
    dialog.locator("svg circle").first.press("ArrowRight")
    expect(dialog.locator("svg circle").nth(1)).to_be_focused()
    expect(dialog.get_by_role("tooltip")).to_be_visible()
    for words in ("Optimizer step", "Messages"):
        dialog.get_by_role("tab", name=words).click()
        expect(dialog.get_by_role("tab", name=words)).to_have_attribute("aria-selected", "true")
    expect(dialog.get_by_role("row", name="inside a node")).to_contain_text("100 µs")
    dialog.get_by_role("tab", name="Contention").click()
    expect(dialog.locator(".mw-pf-chart")).to_contain_text("relative to the same message alone")
    expect(dialog.get_by_role("row", name="two pairs of processes at once")).to_contain_text("25 MB/s in total, 1.00x")
    expect(dialog.locator(".mw-pf-warnings li").first).to_contain_text("is outside the measured range")

    dialog.get_by_role("button", name="Use in this design").click()
    expect(dialog.get_by_text("Used by this design")).to_be_visible()
    expect(dialog.locator(":focus")).to_have_count(1)  # the button went, and the keyboard is not lost with it
    assert session.design.cost.model_dump()["profile"] == "known.json"
    assert not session.errors

    name.fill("mine")
    dialog.get_by_role("button", name="Calibrate this machine").click()
    expect(dialog.get_by_role("progressbar")).to_be_visible()
    expect(dialog.get_by_role("button", name="Stop")).to_be_visible()
    expect(dialog.get_by_role("status")).to_have_text("profile stored", timeout=LONG_MS)
    expect(dialog.locator('.mw-pf-entry[aria-current="true"] strong')).to_have_text("mine")

    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    choice = page.get_by_label("Profile", exact=True)
    expect(choice.locator("option")).to_have_text(["known", "mine"])
    choice.select_option(label="mine")
    eventually(page, lambda: session.design.cost.model_dump()["profile"] == "mine.json")
    stage.run(session.undo)
    expect(choice.locator("option:checked")).to_have_text("known")
