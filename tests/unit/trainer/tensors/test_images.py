"""Images stay with their sequences, and give their tokens the positions that Transformers gives them."""

from types import SimpleNamespace

import pytest
import torch
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from rlhf_trainer.tensors.image_arrays import images_of_arrays, images_to_arrays
from rlhf_trainer.tensors.images import Images
from rlhf_trainer.tensors.records import Sequences

PAD, MERGE = 7, 2
GRIDS = [(1, 4, 6), (1, 2, 2), (1, 8, 2)]
TEXTS = [[3, *[PAD] * 6, 5, *[PAD], 6, 4], [3, 4, 5], [*[PAD] * 4, 1, 2]]


def made() -> Sequences:
    """Three sequences, with two images, none, and one; the patches of an image have its number as value."""
    patches = [torch.full((t * h * w, 3), float(i)) for i, (t, h, w) in enumerate(GRIDS)]
    images = Images(
        tuple(patches), torch.tensor(GRIDS), torch.tensor([1, 8, 0]), torch.tensor([2, 0, 1]), MERGE
    )
    packed = Sequences.pack([(text[:-1], text[-1:]) for text in TEXTS])
    return Sequences(packed.tokens, packed.lengths, packed.prompt_lengths, images=images)


def test_positions_are_those_of_transformers():
    sequences, grids = made(), torch.tensor(GRIDS)
    model = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=MERGE)))
    model.get_vision_position_ids = lambda *given, **named: Qwen3VLModel.get_vision_position_ids(
        model, *given, **named
    )
    expected, at = [], 0
    for i, count in enumerate(sequences.images.counts.tolist()):
        row = sequences.row(i)[None]
        ids, _ = Qwen3VLModel.get_rope_index(
            model, row, (row == PAD).int(), image_grid_thw=grids[at : at + count]
        )
        expected.append(ids[:, 0])
        at += count
    assert torch.equal(sequences.images.position_ids(sequences.lengths), torch.cat(expected, dim=1))


def test_images_follow_their_sequences():
    sequences = made()
    picked = sequences.select(torch.tensor([2, 0, 2])).images
    assert picked.counts.tolist() == [1, 2, 1]
    assert [grid[1] for grid in picked.grids.tolist()] == [8, 4, 2, 8]
    assert [each[0, 0] for each in picked.patches] == [2.0, 0.0, 1.0, 2.0]
    joined = Sequences.join([Sequences.pack([((1,), (2,))]), sequences, sequences.select(torch.tensor([1]))])
    assert joined.images.counts.tolist() == [0, 2, 0, 1, 0]
    assert all(map(torch.equal, joined.images.patches, sequences.images.patches))
    assert Sequences.join([Sequences.pack([((1,), (2,))])]).images is None


def test_a_message_has_each_image_once_and_no_image_that_does_not_fit():
    sequences = made().select(torch.tensor([2, 0, 2]))
    arrays = images_to_arrays(sequences.images)
    assert len(arrays["image_grids"]) == 3 < len(sequences.images)
    there = images_of_arrays(arrays, sequences.prompt_lengths)
    assert all(map(torch.equal, there.patches, sequences.images.patches))
    assert torch.equal(there.starts, sequences.images.starts)
    for name, wrong in {
        "patches": arrays["patches"][1:],
        "image": arrays["image"] + 1,
        "image_starts": arrays["image_starts"] + 3,
        "image_counts": arrays["image_counts"][1:],
        "image_merge": torch.tensor([0]),
    }.items():
        with pytest.raises(ValueError, match="image"):
            images_of_arrays({**arrays, name: wrong}, sequences.prompt_lengths)
