"""Ranks that go their own way are told so, all of them, with the same words; and can go on."""

from __future__ import annotations

import pytest
from habits import HABITS, live
from quarrels import QUARRELS
from rank_pool import MeshSpec, Pool, mesh_of
from test_habits import compare

SAID = {
    "other_weights_at_the_start": "different values in 4 parameters and buffers, such as 'first.weight'",
    "other_statistics_at_the_start": "different values in 1 parameters and buffers, such as 'norm.running_mean'",
    "other_labels": "the ranks disagree on the content of inputs that they share",
    "another_image": "the ranks disagree on the content of inputs that they share",
    "a_box_that_is_not_the_same": "the ranks disagree on the content of inputs that they share",
    "a_step_of_the_optimizer_is_skipped": "different values in",
    "a_step_is_skipped": "the ranks disagree on the content of inputs that they share",
    "weights_are_loaded_by_the_first_rank_alone": "different values in",
    "another_rate_of_learning": "different values in",
    "a_rank_without_its_image": "the ranks disagree on inputs",
    "an_image_that_cannot_be_read": "rank 1 has no input: ",
    "an_array_turned_by_one_rank": "the ranks disagree on the content of inputs that they share",
    "a_crop_of_a_file_by_one_rank": "the ranks disagree on the content of inputs that they share",
    "a_crop_of_an_opened_file_by_one_rank": "the ranks disagree on the content of inputs that they share",
    "an_opened_file_turned_by_one_rank": "the ranks disagree on the content of inputs that they share",
    "an_array_that_is_sliced_of_another_content": "the ranks disagree on the content of inputs that they share",
    "a_style_that_each_has_drawn": "the ranks disagree on an input that each has computed",
    "another_loss_outside": "the ranks disagree on the gradient of an output that they share",
    "a_loss_of_the_box": "a loss of part.local is a loss of this rank's box",
    "a_whole_mask": "lies on the mesh, but is a whole tensor",
    "a_part_of_another_mesh": "lies on another mesh, ",
    "a_number_from_a_part": "'float' of a part: this rank has only a box of it",
    "a_decision_on_a_part": "'bool' of a part: this rank has only a box of it",
    "backward_from_a_part": "a part is not a loss",
    "a_write_to_a_part": "'add_' writes to a part in place",
    "a_part_is_assigned_to": "'__setitem__' writes to a part in place",
    "what_has_no_box_rule": "'linalg_inv' of parts: ",
    "boxes_that_do_not_fit": "the boxes of the ranks do not fit together",
    "norms_that_ask_by_themselves": "'norm' is a SyncBatchNorm",
    "axes_beside_the_image": "leaves it to DistributedDataParallel",
    "a_part_of_all_axes": "of this mesh mesh[",
    "a_name_that_means_nothing": "a mesh axis called 'x'",
    "words_that_mean_nothing": "agree by 'perhaps' | replicas cannot be told to 'maybe' | halos cannot be",
    "written_to_and_put_back": "nothing",
    "computed_alike": "nothing",
    "nobody_looks": "nothing",
}


@pytest.mark.parametrize("mesh", [mesh_of(h=2), mesh_of(batch=2, h=2)], ids=str)
def test_quarrels(pool: Pool, mesh: MeshSpec) -> None:
    assert SAID.keys() == QUARRELS.keys()
    starts = pool.starts
    every = pool.run(mesh, "quarrels:say", list(QUARRELS), hang_s=120)
    told = {name: {said[name] for said in every} for name in SAID}
    assert {name: said for name, said in told.items() if len(said) > 1 or SAID[name] not in min(said)} == {}
    name = next(iter(HABITS))  # the ranks can go on
    for found in pool.run(mesh, "habits:live", [name]):
        compare(found, live(None, [name]), 1e-9, name)
    assert pool.starts - starts <= 1 and mesh.world in pool.worlds
