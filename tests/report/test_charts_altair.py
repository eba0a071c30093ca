"""Charts drawn: specifications obey Vega-Lite's schema, files are what their suffix says, pages need no network."""

from __future__ import annotations

import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

altair = pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from trilemma.cli.main import main  # noqa: E402
from trilemma.estimate.serving import estimate  # noqa: E402
from trilemma.estimate.training import estimate_training  # noqa: E402
from trilemma.hardware.catalogue import find  # noqa: E402
from trilemma.hardware.cluster import Cluster  # noqa: E402
from trilemma.models.resolve import load_model  # noqa: E402
from trilemma.plans import EngineRef, Layout, Plan, Pool  # noqa: E402
from trilemma.question import Question  # noqa: E402
from trilemma.report.charts import comparison_chart, estimate_chart, pareto_chart, training_chart, write_chart  # noqa: E402
from trilemma.search import search_serving  # noqa: E402
from trilemma.search.compare import compare  # noqa: E402
from trilemma.search.training import search_training  # noqa: E402
from trilemma.search.training_layouts import TrainingConstraints  # noqa: E402
from trilemma.search.training_questions import waterfall  # noqa: E402
from trilemma.workloads import Serving, TrainingWorkload  # noqa: E402

ROOT = Path(__file__).parents[2]
HOSTILE = 'x</title></script><script>alert(1)</script><img src=x onerror=alert(2)>" & %'


def an_estimate(name="llama-3.1-8b"):
    return estimate(
        Question(
            model=replace(load_model("llama-3.1-8b"), name=name),
            cluster=Cluster.of(find("h100-sxm"), 1),
            workload=Serving(isl=1024, osl=256, concurrency=8, tpot_ms=20),
            plan=Plan(engine=EngineRef(), pools=(Pool(layout=Layout()),)),
        )
    )


def spec_of(name):
    model, cluster = load_model("llama-3.1-8b"), Cluster.of(find("h100-sxm"), 8)
    load = Serving(isl=1024, osl=256, tpot_ms=20)
    if name == "estimate":
        return estimate_chart(an_estimate(), cluster.accelerator)
    if name == "front":
        found, free = (
            search_serving(model, cluster, one, top=3, front=6) for one in (load, replace(load, tpot_ms=1e9))
        )
        return pareto_chart(found, model=model.name, cluster=cluster, unlimited=free)
    if name == "comparison":
        return comparison_chart(compare(model, [cluster, Cluster.of(find("l40s"), 1)], load), model=model.name)
    workload = TrainingWorkload(seq=4096, global_batch=64)
    search = search_training(model, cluster, workload, settled=TrainingConstraints(), top=1)
    best = estimate_training(Question(model=model, cluster=cluster, workload=workload, plan=search.plans[0].plan))
    return training_chart(best, cluster.accelerator, waterfall(model, cluster, workload, search))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["estimate", "front", "comparison", "training"])
def test_specifications_obey_the_schema_of_vega_lite_and_draw(name, tmp_path):
    spec = spec_of(name)
    altair.Chart.from_dict(spec)  # validates
    write_chart(spec, tmp_path / f"{name}.svg")
    texts = [text for text in ET.parse(tmp_path / f"{name}.svg").getroot().itertext() if text.strip()]
    assert spec["title"]["text"] in texts
    assert len(texts) > 20
    assert not any(text in ("null", "undefined", "NaN") for text in texts)


@pytest.mark.parametrize(
    "command",
    [
        "fit llama-3.1-8b --gpu h100-sxm --isl 1024 --osl 256",
        "fit llama-3.1-8b --gpu h100-sxm:8 --train 4096 --global-batch 64",
    ],
)
def test_commands_draw_and_keep_stdout_for_the_answer(command, tmp_path, capsys):
    path = tmp_path / "chart.PNG"
    assert main([*shlex.split(command), "--chart", str(path), "--json"]) in (0, 1)
    shown = capsys.readouterr()
    assert shown.out.startswith("{")
    assert shown.err.splitlines()[-1] == f"chart: {path}"
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert int.from_bytes(content[16:20]) > 1000  # wide enough to read


def tags(page):
    """Every element of a page in order; one with an address would fetch something."""
    found = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            assert not {"src", "href"} & {name for name, _ in attributes}, tag
            found.append(tag)

    Reader().feed(page)
    return found


@pytest.mark.slow
def test_page_needs_no_network_and_runs_nothing_of_a_name(tmp_path):
    path = tmp_path / "chart.html"
    write_chart(estimate_chart(an_estimate(HOSTILE), find("h100-sxm")), path)
    page = path.read_text(encoding="utf-8")
    head, libraries, own = page.split("<script>")  # two scripts, both inside
    assert page.count("</script>") == 2
    assert len(libraries) > 500_000
    assert "alert(1)" in own  # the name is there, as text
    assert own.count("<") == own.count("</") == 3  # script, body, html
    assert "default-src 'none'" in head
    assert "connect-src" not in head
    assert tags(page) == ["html", "head", "meta", "meta", "title", "script", "body", "div", "script"]


def test_picture_of_a_hostile_name_is_well_formed(tmp_path):
    path = tmp_path / "chart.svg"
    write_chart(estimate_chart(an_estimate(HOSTILE), find("h100-sxm")), path)
    root = ET.parse(path).getroot()
    assert not [one for one in root.iter() if one.tag.endswith(("script", "image", "foreignObject"))]
    assert any("alert(1)" in text for text in root.itertext())


@pytest.mark.slow
def test_commands_of_the_page_on_charts_draw(tmp_path, capsys):
    text = (ROOT / "docs" / "charts.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("trilemma ")]
    assert len(lines) >= 4
    for line in lines:
        words = [
            str(tmp_path / word) if word.startswith("FILE.") else word for word in shlex.split(line.partition("  #")[0])
        ]
        assert main(words[1:]) in (0, 1), line
        assert "chart: " in capsys.readouterr().err


def test_charts_are_imported_only_when_asked_for():
    script = (
        "import sys; from trilemma.cli.main import main; main(['fit', 'llama-3.1-8b', '--gpu', 'h100-sxm', '--json']);"
        "print([name for name in sys.modules if 'vl_convert' in name or 'altair' in name or 'charts' in name], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "['trilemma.cli.charts']"
