"""Laws of the HTML report: one file that asks for nothing, escapes everything, reads in order and is readable in both themes."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simulator.cost.spread import Estimate
from simulator.plots.colour import READABLE, contrast, ink_on, on_dark, readable
from simulator.plots.inline import InlineFigure, colour_rules, inline
from simulator.plots.rounds import _BLUES, _GREYS, _ORANGES
from simulator.plots.style import new_figure, note
from simulator.questions.break_even import break_even
from simulator.questions.capacity import capacity
from simulator.questions.comparison import compare
from simulator.questions.explanation import explain
from simulator.questions.method_map import method_map
from simulator.questions.schedule import schedule
from simulator.reports.files import (
    write_break_even,
    write_capacity,
    write_comparison,
    write_explanation,
    write_run,
    write_schedule,
)
from simulator.reports.html import html, style
from simulator.reports.markdown import markdown
from simulator.reports.page import Bullets, Code, Fact, Figure, Heading, Page, Section, Table, Text, Verdict
from simulator.scenario import scenario_of
from simulator.simulation import simulate
from simulator.spec import parse_yaml
from tests.test_alternatives import NGRAM
from tests.test_alternatives import scenario as method_scenario
from tests.test_reports import WITHOUT_LEVEL as SCENARIO

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
NASTY = '<script>alert("1")</script> & <img src=x onerror=alert(1)> `<b>`'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_run(simulate(scenario_of(parse_yaml(SCENARIO, "chat.yaml"))), out)
    return out


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Every start tag with its attributes, and all text outside of styles."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.said += data

    def attributes(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag in tags]


def page(text: str = NASTY) -> Page:
    """A page that holds `text` wherever a page can hold any."""
    verdict = Verdict(text, "good", (text, text), text, text, Estimate(1.2, 1.1, 1.3), (Fact(text, text, text),), text)
    blocks = (Text(text), Heading(text), Bullets((text,)), Table((text, text), ((text, text),), text), Code(text, text, "sh"))
    return Page(text, text, text, verdict, (Section(text, (*blocks, Figure("drawn", text))),), text)


def drawn(alt: str = "A line") -> InlineFigure:
    from matplotlib.figure import Figure as Drawing

    figure: Drawing = new_figure("Found: <1>", 'How to "read" it & so on\nScenario chat')
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#0072B2")
    note(axes, 0.5, 0.5, "here", color="#f0e442")
    return inline(figure, "drawn", alt)


def test_an_explanation_is_a_page_too(tmp_path: Path) -> None:
    answer = explain(scenario_of(parse_yaml(SCENARIO, "chat.yaml")), batch=4)
    written = {str(path.relative_to(tmp_path)) for path in write_explanation(answer, "chat", tmp_path)}
    figures = {f"figures/{name}.{kind}" for name in ("round", "tornado") for kind in ("png", "svg")}
    assert written == {"report.html", "report.md", "explanation.json"} | figures
    said = " ".join(Reader((tmp_path / "report.html").read_text(encoding="utf-8")).said.split())
    for words in ("chat: why speculation wins", "What moves the verdict", "acceptance rate +10", "round_overhead_s"):
        assert words in said.replace("\u00a0", " ")


# -------------------------------------------------------------------------------------------------------------- structure


def test_headings_are_in_order_with_one_on_top(text: str) -> None:
    levels = [int(tag[1]) for tag, _ in Reader(text).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_figure_has_words_for_who_cannot_see_it(text: str) -> None:
    reader = Reader(text)
    pictures = reader.attributes("svg")
    assert len(pictures) == 1 + 8  # the interval of the verdict, and the figures of a run
    assert all(picture["role"] == "img" and len(picture["aria-label"]) > 20 for picture in pictures)
    assert len(reader.attributes("figure")) == len(reader.attributes("figcaption")) == 8


def test_the_page_says_what_the_markdown_says(folder: Path, text: str) -> None:
    said = " ".join(Reader(text).said.replace("\u00a0", " ").split())
    written = (folder / "report.md").read_text(encoding="utf-8")
    for line in written.splitlines():
        if line.startswith("## ") or (line[:2] == "- " and "`" not in line):
            assert line.lstrip("#- ").replace("&lt;", "<") in said
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["verdict"]["answer"] in ("win", "lose", "close")


def test_ids_are_unique_and_links_lead_somewhere(text: str) -> None:
    reader = Reader(text)
    ids = Counter(attributes["id"] for _, attributes in reader.tags if "id" in attributes)
    assert max(ids.values()) == 1
    targets = {attributes["href"] for attributes in reader.attributes("a", "use")}
    used = {f"#{name}" for name in re.findall(r"url\(#([^)]+)\)", text)}
    assert {name.removeprefix("#") for name in targets | used} <= set(ids)


def test_nothing_outside_of_the_file_is_asked_for(text: str) -> None:
    reader = Reader(text)
    assert not reader.attributes("script", "link", "img", "iframe", "object", "embed", "image", "source", "video", "audio")
    assert all(value.startswith("#") for _, each in reader.tags for name, value in each.items() if name in ("src", "href"))
    assert not re.search(r"@import|@font-face|url\((?!#)", text)
    policy = next(each["content"] for each in reader.attributes("meta") if each.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_whatever_a_page_holds_is_escaped() -> None:
    allowed = {tag for tag, _ in Reader(html(page("plain `code`"), {"drawn": drawn()})).tags}
    reader = Reader(html(page(), {"drawn": drawn(NASTY)}))
    assert {tag for tag, _ in reader.tags} == allowed
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert reader.said.count('<script>alert("1")</script>') >= 15
    assert "<script" not in re.sub(r"`[^`]*`|```.*?```", "", markdown(page(), {}), flags=re.DOTALL)


def test_same_figure_same_bytes_and_title_and_reading_are_the_pages_text() -> None:
    first, second = drawn(), drawn()
    assert first == second
    assert (first.title, first.reading, first.source) == ("Found: <1>", 'How to "read" it & so on', "Scenario chat")
    assert "Found" not in first.svg


# --------------------------------------------------------------------------------------------------------------- contrast


def themes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{([^}]*)\}", style())
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for name, block in (("light", light), ("dark", dark))
    }  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_of_the_page_can_be_read_on_every_ground_it_stands_on(theme: str) -> None:
    colours = themes()[theme]
    pairs = [(ink, ground) for ink in ("ink", "soft") for ground in ("ground", "panel", "stripe")]
    pairs += [("link", "ground"), ("link", "panel")]
    for tone in ("good", "bad", "unsure", "neutral"):
        pairs += [(tone, f"{tone}-tint"), (tone, "panel")]
    ratios = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert all(ratio >= READABLE for ratio in ratios.values()), ratios


def test_both_themes_state_the_same_colours() -> None:
    assert set(themes()["light"]) == set(themes()["dark"])


def test_white_paper_becomes_the_dark_panel() -> None:
    assert on_dark("#ffffff") == themes()["dark"]["panel"]


def test_text_in_figures_can_be_read_in_both_themes(text: str) -> None:
    for figure in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        if 'aria-label="Best' in figure or 'aria-label="Milliseconds' in figure:
            continue  # text on coloured bars and cells: below
        inks = set(re.findall(r'<g style="fill: var\(--c([0-9a-f]{6})\)', figure))
        assert inks or "axis" in figure  # the interval of the verdict has no text
        for ink in inks:
            assert contrast(f"#{ink}", "#ffffff") >= READABLE
            assert contrast(on_dark(f"#{ink}"), on_dark("#ffffff")) >= READABLE


@pytest.mark.parametrize("ground", [*_BLUES, *_ORANGES, *_GREYS])
def test_labels_on_bars_can_be_read_in_both_themes(ground: str) -> None:
    ink = ink_on(ground)
    assert contrast(ink, ground) >= READABLE
    assert contrast(on_dark(ink), on_dark(ground)) >= READABLE


@pytest.mark.parametrize("colour", ["#f0e442", "#7ad151", "#e69f00", "#cccccc", "#0072b2"])
def test_a_colour_too_light_to_be_read_is_darkened_and_no_other_is_touched(colour: str) -> None:
    assert contrast(readable(colour), "#ffffff") >= READABLE
    assert (readable(colour) == colour) == (contrast(colour, "#ffffff") >= READABLE)


def test_every_colour_of_a_figure_has_a_value_in_both_themes() -> None:
    figure = drawn()
    light, dark = colour_rules([figure])
    used = set(re.findall(r"var\(--c([0-9a-f]{6})\)", figure.svg))
    assert used == set(re.findall(r"--c([0-9a-f]{6}):", light)) == set(re.findall(r"--c([0-9a-f]{6}):", dark))
    assert not re.search(r"#[0-9a-fA-F]{6}\b", re.sub(r'(href|id)="[^"]*"|url\([^)]*\)', "", figure.svg))


# ---------------------------------------------------------------------------------------------------------- real browser

FRAME = """<!DOCTYPE html><iframe id="f" src="report.html" width="{width}" height="3000"></iframe><pre id="o"></pre><script>
f.onload = () => {{
  const page = f.contentDocument, at = (item) => item.getBoundingClientRect();
  o.textContent = "FOUND" + JSON.stringify({{
    wide: page.documentElement.scrollWidth, asked: f.contentWindow.performance.getEntriesByType("resource").length,
    heights: [...page.querySelectorAll("svg")].map((each) => at(each).height), title: page.title,
    ground: getComputedStyle(page.body).backgroundColor, ink: getComputedStyle(page.body).color,
    cut: [...page.querySelectorAll(".facts div, .outcome, .advice, h1, h2")].filter((e) => e.scrollWidth > e.clientWidth + 1).length,
  }}) + "END";
}}</script>"""


KINDS = ("run", "break-even", "capacity", "schedule", "explain", "compare")
NARROW = """<!DOCTYPE html>{frames}<pre id="o"></pre><script>
onload = () => {{
  const found = {{}};
  for (const frame of document.querySelectorAll("iframe")) {{
    const page = frame.contentDocument, width = frame.clientWidth;
    const over = [...page.body.querySelectorAll("*")].filter(
      (each) => !each.closest(".scroll, pre") && each.getBoundingClientRect().right > width + 1);
    const cut = [...page.querySelectorAll("caption, figcaption, .reading, .facts div")].filter(
      (each) => each.scrollWidth > each.clientWidth + 1 || each.getBoundingClientRect().width > width);
    found[frame.id] = {{wide: page.documentElement.scrollWidth, over: over.length, cut: cut.length,
      ground: getComputedStyle(page.body).backgroundColor, figures: page.querySelectorAll("figure").length}};
  }}
  o.textContent = "FOUND" + JSON.stringify(found) + "END";
}}</script>"""


@pytest.fixture(scope="module")
def pages(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of every kind, as KIND.html; the run's has the map of methods as well."""
    out = tmp_path_factory.mktemp("pages")
    few = parse_yaml(SCENARIO, "chat.yaml")
    few.data["workload"]["num_requests"] = 40
    chat = scenario_of(few)
    several = method_scenario([NGRAM])
    write_break_even(break_even(several.alone()), out / "break-even", method_map(several))
    write_capacity(capacity(chat, repetitions=1), out / "capacity")
    write_schedule(schedule(chat, held_out=2), out / "schedule")
    write_explanation(explain(chat, batch=4), "chat", out / "explain")
    write_comparison(compare(chat, "method"), out / "compare")
    shutil.copytree(folder, out / "run")
    for kind in KINDS:
        shutil.copy(out / kind / "report.html", out / f"{kind}.html")
    return out


def opened(folder: Path, width: int, dark: bool, scratch: Path, page: str = FRAME) -> tuple[dict[str, Any], list[str]]:
    """(what the browser found, its console messages) of report.html in a frame of this width."""
    assert BROWSER is not None
    shutil.copy(folder / "report.html", scratch / "report.html")
    (scratch / "frame.html").write_text(page.format(width=width), encoding="utf-8")
    # fmt: off
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--allow-file-access-from-files", "--enable-logging=stderr",
        f"--user-data-dir={scratch / 'profile'}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--dump-dom", (scratch / "frame.html").as_uri(),
    ]
    # fmt: on
    done = subprocess.run([BROWSER, *flags], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"FOUND(\{.*?\})END", done.stdout.rpartition("<pre")[2])
    assert found is not None, done.stderr[-2000:]
    return json.loads(found[1].replace("&lt;", "<").replace("&amp;", "&")), re.findall(r"CONSOLE.*", done.stderr)


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian: apt-get install chromium)")


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_a_browser_renders_it_without_a_request_an_error_or_a_sideways_scroll(
    folder: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    found, console = opened(folder, width, dark, tmp_path)
    assert not console
    assert found["asked"] == 0
    assert found["title"].startswith("chat: ")
    assert found["wide"] <= width
    assert found["cut"] == 0
    assert len(found["heights"]) == 9
    assert min(found["heights"]) > 20
    colours = themes()["dark" if dark else "light"]
    shown = {"#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", found[name])) for name in ("ground", "ink")}
    assert shown == {colours["ground"], colours["ink"]}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_page_has_headings_in_order_and_words_for_its_figures(pages: Path, kind: str) -> None:
    text = (pages / f"{kind}.html").read_text(encoding="utf-8")
    reader = Reader(text)
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(picture["role"] == "img" and len(picture["aria-label"]) > 20 for picture in reader.attributes("svg"))
    figures = re.findall(r"<figure.*?</figure>", text, flags=re.DOTALL)
    assert figures
    assert all("Source: " in figure for figure in figures)


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_no_kind_of_page_overflows_a_phone(pages: Path, tmp_path: Path, dark: bool) -> None:
    """400 px wide: whatever is wider scrolls in a box of its own, and captions and facts wrap."""
    frames = "".join(
        f'<iframe id="{kind}" src="{kind}.html" width="400" height="2000" frameborder="0"></iframe>' for kind in KINDS
    )
    for kind in KINDS:
        shutil.copy(pages / f"{kind}.html", tmp_path)
    found, console = opened(pages / "run", 400, dark, tmp_path, NARROW.replace("{frames}", frames))
    assert not console
    assert set(found) == set(KINDS)
    ground = themes()["dark" if dark else "light"]["ground"]
    for kind, each in found.items():
        assert each["wide"] <= 400, kind
        assert (each["over"], each["cut"]) == (0, 0), kind
        assert each["figures"] > 0, kind
        assert "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", each["ground"])) == ground


@needs_browser
def test_the_browser_check_sees_a_request_and_an_error(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
    (bad / "report.html").write_text(f'<!DOCTYPE html>{policy}<img src="x.png">', encoding="utf-8")
    found, console = opened(bad, 800, False, tmp_path)
    assert found["asked"] == 1
    assert console


def test_a_figure_that_was_not_drawn_leaves_no_trace() -> None:
    bare = dataclasses.replace(page("x"), sections=(Section("Only a figure", (Figure("absent", "nothing"),)),))
    assert "Only a figure" not in html(bare, {})
    assert "Only a figure" not in markdown(bare, {})
