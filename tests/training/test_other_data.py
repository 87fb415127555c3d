"""A run that trains on given responses goes on with the same data alone."""

import pytest
from tests.training.running import PAIRS, Job

from rlhf_api.problems import InvalidJob


def test_another_number_of_rows_is_refused():
    """Its positions would be of other epochs: some rows trained on twice, others never."""
    cut = Job("dpo").steps(0, 2).snapshot(2)
    assert Job("dpo").restore(cut).task.state() == cut.state
    said = r"spec.data.train: the checkpoint belongs to a run with 10 samples an epoch; got 9; go on with the same"
    with pytest.raises(InvalidJob, match=said):
        Job("dpo", rows=PAIRS[:9]).restore(cut)
