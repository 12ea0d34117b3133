"""Lines fitted to measurements: known lines are recovered, and no coefficient is negative."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs.line_fits import fit_line, fit_terms

COLUMNS = np.array(
    [
        [1.0, blocks, blocks * tokens * hidden**2, blocks * tokens * hidden]
        for blocks, tokens, hidden in (
            (1, 64, 64),
            (4, 64, 64),
            (1, 256, 128),
            (2, 512, 128),
            (1, 128, 512),
            (1, 512, 768),
        )
    ]
)
"""Columns of the fit: constant, blocks, products, bytes."""


@given(once=st.floats(0, 1e-3), block=st.floats(0, 1e-3), product=st.floats(1e-12, 1e-9), byte=st.floats(0, 1e-8))
def test_the_fit_recovers_the_time_per_unit_of_each_term(
    once: float, block: float, product: float, byte: float
) -> None:
    per = np.array([once, block, product, byte])

    found, r2 = fit_terms(COLUMNS, COLUMNS @ per)

    assert np.allclose(COLUMNS @ found, COLUMNS @ per, rtol=1e-4)
    assert r2 == pytest.approx(1)


@given(seconds=st.lists(st.floats(1e-6, 1.0), min_size=6, max_size=6))
def test_no_fitted_coefficient_is_negative(seconds: list[float]) -> None:
    found, _ = fit_terms(COLUMNS, np.array(seconds))

    assert min(found) >= 0
    assert max(found) > 0


@given(noise=st.lists(st.floats(-0.1, 0.1), min_size=6, max_size=6))
def test_small_noise_causes_small_errors(noise: list[float]) -> None:
    clean = COLUMNS @ np.array([1e-4, 1e-3, 1e-10, 1e-9])

    found, _ = fit_terms(COLUMNS, clean * np.exp(noise))

    assert np.abs(np.log(COLUMNS @ found / clean)).max() < 0.3


def test_a_term_without_samples_has_the_coefficient_zero() -> None:
    columns = np.concatenate([COLUMNS, np.zeros((6, 1))], axis=1)

    found, _ = fit_terms(columns, COLUMNS[:, 2] * 1e-10)

    assert found[4] == 0


def test_terms_that_samples_cannot_distinguish_share_a_price() -> None:
    found, _ = fit_terms(np.ones((3, 2)), np.full(3, 2.0))

    assert sum(found) == pytest.approx(2.0)


def test_one_size_suffices_for_a_line() -> None:
    assert fit_line([(1000.0, 2.0)]).r2 == 1.0


def test_an_exact_fit_of_samples_that_are_equal_up_to_rounding_explains_them() -> None:
    seconds = np.array([0.1 + 0.2, 0.3, 0.3])

    line = fit_line([(size, each) for size, each in zip((8, 16, 32), seconds, strict=True)])

    assert line.alpha_s == pytest.approx(0.3)
    assert line.r2 == 1
