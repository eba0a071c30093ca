"""Requests that wait for answers: users, conversations with turns and pauses, sessions of a trace in order."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

import trilemma as tl
from trilemma.errors import InputError
from trilemma.simulation.serving.conversations import SessionsInOrder
from trilemma.simulation.serving.stated import StatedTraffic, stated_traffic
from trilemma.simulation.serving.traffic import Arrival

MODEL, GPU = "llama-3.1-8b", "h100-sxm"
NOTHING = {"trace": None, "lengths": None, "scale_rate": 1.0, "begin_s": 0.0, "span_s": None}


def traffic(**stated) -> StatedTraffic:
    return stated_traffic(**{**NOTHING, "isl": 100, "osl": 10, "requests": 50, "seed": 0} | stated)


def lines(tmp_path, **options):
    file = tmp_path / "requests.jsonl"
    tl.simulate(MODEL, GPU, bounds=False, per_request=file, **options)
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_users_send_the_next_request_when_one_is_answered(tmp_path) -> None:
    rows = lines(tmp_path, arrivals="users:4", isl=200, osl=20, requests=40)
    assert len(rows) == 40
    ends = sorted(row["finish_s"] for row in rows)
    starts = sorted(row["arrival_s"] for row in rows)
    assert starts[:4] == [0.0] * 4
    # each later start is an end, so four are in flight until the last have begun
    assert starts[4:] == pytest.approx(ends[:36])


def test_a_user_pauses(tmp_path) -> None:
    rows = sorted(
        lines(tmp_path, arrivals="users:1", think="3", isl=200, osl=20, requests=5), key=lambda row: row["arrival_s"]
    )
    gaps = [later["arrival_s"] - row["finish_s"] for row, later in pairwise(rows)]
    assert gaps == pytest.approx([3.0] * 4, abs=1e-5)


def test_a_turn_holds_all_that_was_said_and_finds_it_in_the_cache(tmp_path) -> None:
    file = tmp_path / "requests.jsonl"
    told = tl.simulate(
        MODEL, GPU, arrivals="poisson:1", turns=3, think=1, isl=320, osl=16, requests=60, bounds=False, per_request=file
    ).to_dict()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["input"] for row in rows} == {320, 320 + 336, 320 + 2 * 336}
    # of 320, 656 and 992 tokens 0, 335 and 671 were there, whole blocks of 16 of them
    found = {320: 0, 656: 320, 992: 656}
    share = sum(found[row["input"]] for row in rows) / sum(row["input"] for row in rows)
    assert told["cache"]["token_hit_rate"] == pytest.approx(share, abs=1e-6)


def test_the_same_seed_draws_the_same_whoever_ends_first() -> None:
    first, again = (list(traffic(arrivals="users:8", turns="uniform:1:4").again()) for _ in range(2))
    assert first == again
    assert len(first) == 8


def test_no_more_requests_are_made_than_were_asked_for() -> None:
    talk = traffic(arrivals="users:8", requests=10).again()
    assert talk.follow is not None
    made = list(talk)
    more = [following for one in made if (following := talk.follow(one, 1.0)) is not None]
    assert len(made) + len(more) == 10


def test_a_session_of_a_trace_waits_for_its_answer() -> None:
    rows = [
        Arrival(0.0, 10, 5, session="a"),
        Arrival(1.0, 20, 5, session="a"),
        Arrival(2.0, 10, 5, session="b"),
        Arrival(3.0, 5, 5),
    ]
    ordered = SessionsInOrder(iter(rows))
    assert [one.session for one in ordered.free()] == ["a", "b", None]
    following = ordered.follow(rows[0], 7.0)
    assert following is not None
    assert (following.isl, following.arrival_s) == (20, 7.0)
    assert ordered.follow(following, 9.0) is None
    assert ordered.follow(rows[3], 9.0) is None


def test_sessions_in_order_end_to_end(tmp_path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "\n".join(json.dumps({"arrival": at, "input": 500, "output": 200, "session": "x"}) for at in (0, 0.1, 0.2))
    )
    rows = sorted(lines(tmp_path, trace=trace, sessions_in_order=True), key=lambda row: row["arrival_s"])
    for row, later in pairwise(rows):
        assert later["arrival_s"] == pytest.approx(row["finish_s"])
    together = lines(tmp_path, trace=trace)
    assert max(row["arrival_s"] for row in together) == 0.2


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"arrivals": "users:0"}, "users:N"),
        ({"arrivals": "users:many"}, "users:N"),
        ({"arrivals": "users:4", "think": "-1"}, "think"),
        ({"arrivals": "users:4", "turns": "0"}, "turns"),
        ({"arrivals": "users:4", "isl": None}, "isl"),
    ],
)
def test_what_cannot_be_is_named(stated, why) -> None:
    with pytest.raises(InputError, match=why):
        traffic(**stated)


def test_users_whose_requests_never_fit_end() -> None:
    told = tl.simulate(
        MODEL, GPU, arrivals="users:2", isl=5000, osl=10, context=1024, requests=20, bounds=False
    ).to_dict()
    assert (told["completed"], told["rejected"]) == (0, 20)


def test_users_are_among_the_arrivals_that_are_offered() -> None:
    with pytest.raises(InputError, match="users:N"):
        traffic(arrivals="people:4")
    with pytest.raises(InputError, match="no traffic is stated; give `trace` FILE or `arrivals`"):
        traffic(arrivals=None)
    with pytest.raises(InputError, match="`turns` 0 is out of range; give a whole number of at least 1"):
        traffic(arrivals="users:2", turns=0)
    assert "users:4, 1 turn, " in traffic(arrivals="users:4").words


def test_where_all_are_refused_it_says_why_and_shows_no_empty_table() -> None:
    text = tl.simulate(MODEL, GPU, arrivals="users:2", isl=200_000, osl=10, requests=5, bounds=False).show()
    assert "0 of 5 requests answered in 0.0 s, 5 refused (longer than the context of 131,072 tokens" in text
    assert "P99" not in text


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_screen_is_no_wider_than_asked(width: int) -> None:
    found = tl.simulate(MODEL, GPU, arrivals="users:2", isl=100, osl=10, requests=20)
    lines = found.show(width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert any("P99" in line for line in lines)


def test_a_pause_before_no_turn_is_refused() -> None:
    with pytest.raises(InputError, match="`think` is a pause before the next turn; give `turns`"):
        traffic(arrivals="poisson:2", think="exponential:5")
    assert traffic(arrivals="poisson:2", think="exponential:5", turns=2).requests == 50
