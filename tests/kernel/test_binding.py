from __future__ import annotations

import gc
import weakref

import torch

from mjolnir.kernel.binding import Kept, View, Views, form_of


def test_a_form_changes_with_everything_that_a_check_looks_at() -> None:
    memory = torch.zeros(64)
    tensor = memory[:16].view(4, 4)
    others = [memory[:16].view(2, 8), memory[:16].view(4, 4).t(), memory[1:17].view(4, 4), tensor.view(torch.int32)]
    assert len({form_of(item) for item in (tensor, *others)}) == 5
    assert form_of(memory[16:32].view(4, 4)) == form_of(tensor)
    assert form_of(memory[4:20].view(4, 4)) == form_of(tensor)


def test_a_view_is_needed_only_where_the_tensor_differs() -> None:
    tensor = torch.zeros(4, 8)
    assert View(torch.float32, (4, 8), (8, 1)).needed(tensor) is None
    for view in (
        View(torch.float32, (3, 8), (8, 1)),
        View(torch.float32, (4, 8), (0, 1)),
        View(torch.int32, (4, 8), (8, 1)),
    ):
        assert view.needed(tensor) is view


def test_views_begin_where_the_tensor_begins() -> None:
    memory = torch.arange(32.0)
    tensor = memory[8:24].view(4, 4)
    assert torch.equal(View(torch.float32, (2, 4), (4, 1)).of(tensor), memory[8:16].view(2, 4))
    assert View(torch.int32, (2, 4), (4, 1)).of(tensor).data_ptr() == tensor.data_ptr()


def test_a_view_is_made_once() -> None:
    views, tensor = Views(), torch.rand(4, 4)
    view = View(torch.float32, (2, 4), (4, 1))
    assert views.view(tensor, view) is views.view(tensor, View(torch.float32, (2, 4), (4, 1)))
    assert views.view(tensor, None) is tensor


def test_a_view_is_made_anew_when_it_is_another() -> None:
    views, tensor = Views(), torch.rand(4, 4)
    for rows in (2, 3, 2):
        assert torch.equal(views.view(tensor, View(torch.float32, (rows, 4), (4, 1))), tensor[:rows])


def test_a_view_is_made_anew_when_the_tensor_was_pointed_elsewhere() -> None:
    views, tensor = Views(), torch.rand(4, 4)
    view = View(torch.float32, (2, 4), (4, 1))
    first = views.view(tensor, view)
    tensor.set_(torch.rand(16).untyped_storage(), 0, (4, 4), (4, 1))
    moved = views.view(tensor, view)
    assert moved.data_ptr() == tensor.data_ptr() != first.data_ptr()
    assert torch.equal(moved, tensor[:2])


def test_other_values_are_kept_by_their_key() -> None:
    kept: Kept[int] = Kept()
    tensor = torch.rand(4)
    made: list[int] = []

    def make(of: torch.Tensor) -> int:
        made.append(len(of))
        return len(made)

    assert [kept.get(tensor, key, make) for key in ("a", "a", "b", "b")] == [1, 1, 2, 2]


def test_a_view_lives_no_longer_than_its_tensor() -> None:
    views, tensor = Views(), torch.rand(4, 4)
    made = weakref.ref(views.view(tensor, View(torch.float32, (2, 4), (4, 1))))
    assert len(views) == 1
    assert made() is not None
    del tensor
    gc.collect()
    assert len(views) == 0
    assert made() is None
