"""Pipeline schedules: closed forms against simulated timelines, and the bubble of each as published."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilemma.errors import InputError
from trilemma.timing.schedules import bubble_s, step_s, timeline


def closed_form(schedule: str, *, p: int, m: int, v: int = 1, f: float = 1.0, i: float = 1.0, w: float = 1.0) -> float:
    idle = bubble_s(
        schedule,
        pp=p,
        vpp=v,
        micro_batches=m,
        forward_s=f,
        input_gradient_s=i,
        weight_gradient_s=w,  # type: ignore[arg-type]
    )
    return m * (f + i + w) + float(idle)


@settings(max_examples=60)
@given(p=st.integers(1, 9), m=st.integers(1, 20), f=st.floats(0.1, 3), i=st.floats(0.1, 3), w=st.floats(0.1, 3))
def test_bubble_of_1f1b_is_exact_with_equal_stages(p: int, m: int, f: float, i: float, w: float) -> None:
    idle = float(bubble_s("1f1b", pp=p, vpp=1, micro_batches=m, forward_s=f, input_gradient_s=i, weight_gradient_s=w))
    whole = m * (f + i + w) + idle
    assert idle / whole == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 8), (8, 16), (8, 4)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_closed_form_is_the_timeline(schedule: str, p: int, m: int) -> None:
    slots = timeline(
        schedule,
        forward_s=[1.0] * p,
        input_gradient_s=[0.9] * p,
        weight_gradient_s=[0.7] * p,
        micro_batches=m,  # type: ignore[arg-type]
    )
    assert step_s(slots) == pytest.approx(closed_form(schedule, p=p, m=m, i=0.9, w=0.7))


@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 2), (4, 8, 2), (4, 8, 4), (8, 16, 3)])
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, m: int, v: int) -> None:
    slots = timeline(
        "interleaved",
        forward_s=[1.0] * p,
        input_gradient_s=[1.0] * p,
        weight_gradient_s=[1.0] * p,
        micro_batches=m,
        vpp=v,
    )
    assert step_s(slots) == pytest.approx(3 * m + 3 * (p - 1) / v)
    assert step_s(slots) == pytest.approx(closed_form("interleaved", p=p, m=m, v=v))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 16)])
def test_zero_bubble_h1_leaves_a_third(p: int, m: int) -> None:
    slots = timeline(
        "zb-h1", forward_s=[1.0] * p, input_gradient_s=[1.0] * p, weight_gradient_s=[1.0] * p, micro_batches=m
    )
    assert step_s(slots) == pytest.approx(3 * m + (p - 1))
    assert closed_form("zb-h1", p=p, m=m) == pytest.approx(3 * m + (p - 1))


def test_one_slow_stage_sets_the_pace() -> None:
    forward = [1.0, 1.0, 1.0, 2.0]
    for m in (4, 8, 16):
        slots = timeline(
            "1f1b", forward_s=forward, input_gradient_s=forward, weight_gradient_s=forward, micro_batches=m
        )
        idle = bubble_s(
            "1f1b", pp=4, vpp=1, micro_batches=m, forward_s=2.0, input_gradient_s=2.0, weight_gradient_s=2.0,
            slowest_s=6.0, all_stages_s=15.0,
        )  # fmt: skip
        assert step_s(slots) == pytest.approx(6 * m + float(idle))


def test_no_task_starts_before_what_it_needs() -> None:
    slots = timeline(
        "1f1b",
        forward_s=[1.0] * 3,
        input_gradient_s=[1.0] * 3,
        weight_gradient_s=[1.0] * 3,
        micro_batches=5,
        hand_over_s=0.25,
    )
    ended = {(slot.task, slot.micro_batch, slot.stage): slot.end_s for slot in slots}
    for slot in slots:
        if slot.task == "F" and slot.stage:
            assert slot.start_s >= ended["F", slot.micro_batch, slot.stage - 1] + 0.25
        if slot.task == "B" and slot.stage < 2:
            assert slot.start_s >= ended["B", slot.micro_batch, slot.stage + 1] + 0.25


def test_schedules_in_the_order_of_their_papers() -> None:
    def idle(schedule: str) -> float:
        return closed_form(schedule, p=8, m=32) - 96

    assert idle("zbv") == idle("zb-h2") == 0
    assert 0 < idle("dualpipe") < idle("zb-h1") < idle("v-half") < idle("v-min") < idle("1f1b")


def test_tables_of_plans_broadcast_and_one_stage_never_idles() -> None:
    idle = bubble_s(
        "1f1b",
        pp=np.array([1, 2, 4]),
        vpp=1,
        micro_batches=8,
        forward_s=1.0,
        input_gradient_s=1.0,
        weight_gradient_s=1.0,
    )
    assert idle.tolist() == [0.0, 3.0, 9.0]


def test_what_cannot_be_is_refused() -> None:
    parts = {"forward_s": [1.0] * 4, "input_gradient_s": [1.0] * 4, "weight_gradient_s": [1.0] * 4}
    with pytest.raises(InputError, match="not a multiple of the 4 stages"):
        timeline("interleaved", **parts, micro_batches=6, vpp=2)
    with pytest.raises(InputError, match="needs --schedule interleaved"):
        timeline("1f1b", **parts, micro_batches=8, vpp=2)
    with pytest.raises(InputError, match="no timeline"):
        timeline("dualpipe", **parts, micro_batches=8)
