"""Sorting of rows by several columns."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.program.row_order import lexical_order

rows = st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=12)


@given(rows=rows | rows.map(sorted))
def test_rows_are_ordered_as_by_lexsort_whether_or_not_they_are_in_order(rows):
    keys = np.array(rows, np.int64).reshape(-1, 3).T

    assert lexical_order(keys).tolist() == np.lexsort(keys).tolist()
