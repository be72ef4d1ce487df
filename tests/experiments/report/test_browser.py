"""The report as a reader has it, in a browser: choices change the pictures, a click shows a customer, nothing is
loaded. Screenshots are kept in artifacts/."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from experiments import reference
from experiments.analysis import by_cell
from experiments.kv_size_cli import found_from
from experiments.model_config import load_config
from experiments.report.palette import DARK, LIGHT
from experiments.report.write import Measured, read_run, write_report
from experiments.run_folder import Summary
from protocol.clock import seconds
from protocol.records import RequestRecord, read_folder
from tests.experiments.report.folders import HOSTILE, write_manifest, write_rush

ARTIFACTS = Path(__file__).parents[3] / "artifacts"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
BARS = "[data-picture=customers] .mark-rect.role-mark path"
AT_4 = {"c1": ("one", 4.0), "c2": ("static", 4.0), "c3": ("continuous", 4.0)}
AT_1 = {"c4": ("one", 1.0), "c5": ("static", 1.0), "c6": ("continuous", 1.0)}


SWEEP = [
    {
        "weights": "4bit",
        "replies": replies,
        "tokens_per_s": study.tokens_per_s,
        "tokens_per_s_per_reply": study.tokens_per_s / replies,
        "done_s": study.done_s,
        "gain": study.tokens_per_s / 138,
        "lost": None,
    }
    for replies, study in reference.SWEEP.items()
]
LIMIT = {"weights": "4bit", "dtype": None, "limit_tokens_per_s": None, "fraction": None}
EMAILS = [
    {
        "cell": label,
        "label": label,
        "emails": 20,
        "completed": 20,
        "lost": None,
        "prompt_tokens": 1_864,
        "prompt_tokens_read": study.read,
        "ttft_p50_s": study.ttft,
        "ttft_p50_interval_s": (0.9 * study.ttft, 1.1 * study.ttft),
        "ttft_p95_s": 1.2 * study.ttft,
        "reply_p50_s": study.reply,
        "right": study.right,
        "fields_right": 4 * study.right,
        "prefix_hits": 19,
        "shared_tokens": 1_777,
    }
    for label, study in reference.PREFIX.items()
]
SAME = {"compared": 20, "same": 19, "differences": []}
PILES = [
    {
        "kv_bits": bits,
        "dtype": "bfloat16",
        "context": context,
        "prompt_tokens": context,
        "asked": 10,
        "found": found,
        "kv_bytes": 1_000_000 * bits,
        "saved": 1 - bits / 16,
        "read_p50_s": 30.7,
        "peak_memory_bytes": None,
        "lost": None,
    }
    for context, bits, found in ((4_000, 16, 10), (4_000, 4, 10), (16_500, 16, 3), (16_500, 4, 1))
]
FOUND: dict[str, Any] = {
    "sweep": {"rows": SWEEP, "limits": [LIMIT]},
    "prefix": {"rows": EMAILS, "rate": None, "timestamp_first": False, "sooner": 14.1, "sameness": SAME},
    "kv-quant": {"rows": PILES},
    "kv-size": found_from(
        {"model": asdict(load_config("Qwen3-8B")), "context": 32_768, "users": 32, "bits": 16, "memory": 48 * 10**9}
    ),
}
# A line and seven batches; two bars of two parts, then two bars and two marks; bars; two lines, two points, two levels.
MARKS = {"sweep": [1 + 7], "prefix": [4, 4], "kv-quant": [4, 4, 4], "kv-size": [2 + 2 + 2]}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        lacking = "these tests need chromium: apt-get install chromium"
        pytest.fail(lacking) if os.environ.get("CI") else pytest.skip(lacking)
    with sync_playwright() as playwright:
        # The sandbox is not to be had by root, as which containers run.
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_rush(tmp_path_factory.mktemp("browser") / "run", AT_4 | AT_1, 40)
    write_report(made, read_run(made))
    return made


@pytest.fixture
def said() -> list[str]:
    """What the browser complained of, and every address that it asked for."""
    return []


@pytest.fixture
def page(browser: Browser, folder: Path, said: list[str]) -> Iterator[Page]:
    """The report, all drawn; whatever a test does with it, the browser never complains and never asks for more."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    show(opened, folder, said)
    yield opened
    opened.close()
    assert said == [(folder / "report.html").as_uri()]


def show(page: Page, folder: Path, said: list[str]) -> None:
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto((folder / "report.html").as_uri())
    page.wait_for_selector("[data-ready]")


def shapes(page: Page, selector: str = BARS) -> list[str]:
    found: list[str] = page.locator(selector).evaluate_all("them => them.map(each => each.getAttribute('d'))")
    return found


def changed(page: Page, before: list[str], selector: str = BARS) -> list[str]:
    """The bars once they are others than these."""
    page.wait_for_function(
        "([of, before]) => [...document.querySelectorAll(of)].map(e => e.getAttribute('d')).join() !== before",
        arg=[selector, ",".join(before)],
    )
    return shapes(page, selector)


def choose(page: Page, name: str, value: str) -> None:
    page.locator(f"#choice input[name={name}][value='{value}']").check()


def requests(folder: Path, cell: str) -> list[RequestRecord]:
    return by_cell(read_folder(folder))[cell].requests


def test_another_server_and_another_rate_change_the_bars(page: Page) -> None:
    one = shapes(page)
    assert len(one) == 40 * 4  # three parts and a row to click on
    choose(page, "server", "continuous")
    continuous = changed(page, one)
    choose(page, "rate", "1/s")
    slower = changed(page, continuous)
    choose(page, "server", "one at a time")
    assert len({*map(tuple, (one, continuous, slower, changed(page, slower)))}) == 4


def test_the_static_server_s_departures_are_marked(page: Page) -> None:
    before = shapes(page)
    choose(page, "server", "static")
    changed(page, before)
    boarded = page.locator("[data-picture=seats] .mark-text.role-mark text").all_text_contents()
    assert boarded == ["2", "7", "8", "8", "8", "7"]


@pytest.mark.parametrize(("server", "cell"), [("one at a time", "c1"), ("continuous", "c3")])
def test_a_click_shows_that_customer_s_stamps(page: Page, folder: Path, server: str, cell: str) -> None:
    choose(page, "server", server)
    page.locator(BARS).nth(17).click(force=True)
    page.wait_for_selector("#stamps")
    wanted = requests(folder, cell)[17]
    assert page.locator("#one h3").text_content() == f"Customer 17, user-17: whole reply in {reply(wanted)}"
    rows = page.locator("#stamps tr").all_inner_texts()
    for words, at in (
        ("meant to ask", wanted.intended),
        ("first token", wanted.first_token),
        ("let in", wanted.admitted),
    ):
        assert at is not None
        (row,) = [row for row in rows if row.startswith(words)]
        assert row.endswith(f"{seconds(at):.4f} s")
    assert page.locator("#customer").input_value() == "17"
    assert shapes(page, "[data-picture=seats] .mark-rect.role-mark path")


def reply(request: RequestRecord) -> str:
    assert request.intended is not None
    assert request.last_received is not None
    took = seconds(request.last_received - request.intended)
    return f"{took:.1f} s" if took >= 9.995 else f"{took:.2f} s"


def test_a_script_in_a_reply_is_shown_and_never_run(page: Page) -> None:
    page.locator("#customer").select_option("3")
    assert page.locator("#one pre").last.text_content() == HOSTILE
    assert page.locator("#one img, #one script").count() == 0
    assert page.title().startswith("Headway: ")


def test_a_keyboard_is_enough(page: Page) -> None:
    one = shapes(page)
    page.locator("#choice input[name=server]:checked").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#choice input[name=server]:checked").input_value() == "static"
    changed(page, one)
    page.locator("#customer").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#one h3").inner_text().startswith("Customer 0,")
    page.keyboard.press("ArrowDown")
    assert page.locator("#one h3").inner_text().startswith("Customer 1,")


def test_the_table_of_customers_is_the_way_in_without_pictures(page: Page, folder: Path) -> None:
    page.locator("summary", has_text="Customers as a table").click()
    rows = page.locator("#customers-rows tr")
    assert rows.count() == 40
    page.get_by_role("button", name="Show customer 39").click()
    assert page.locator("#one h3").inner_text().startswith("Customer 39,")
    assert rows.nth(39).locator("td").nth(4).text_content() == reply(requests(folder, "c1")[39])


def test_pictures_follow_the_dark(page: Page) -> None:
    fill = "them => getComputedStyle(them[40]).fill"
    light = page.locator(BARS).evaluate_all(fill)
    page.emulate_media(color_scheme="dark")
    dark = page.locator(BARS).evaluate_all(fill)
    assert (light, dark) == (rgb(LIGHT.waiting), rgb(DARK.waiting))
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(DARK.ground)
    keep(page, "report-dark")


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def test_a_phone_needs_no_sideways_scrolling(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(
        "[...document.querySelectorAll('.picture')].every(p => p.querySelector('svg').clientWidth <= p.clientWidth)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    keep(page, "report-phone")


def test_a_screenshot_is_kept(page: Page) -> None:
    page.locator("#customer").select_option("11")
    assert keep(page, "report").stat().st_size > 50_000


def keep(page: Page, name: str) -> Path:
    ARTIFACTS.mkdir(exist_ok=True)
    path = ARTIFACTS / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    return path


@pytest.mark.parametrize("experiment", FOUND)
def test_what_an_experiment_found_is_drawn(browser: Browser, tmp_path: Path, said: list[str], experiment: str) -> None:
    """Every picture has its marks: as many as there are figures."""
    summary = Summary(1, experiment, True, None, [], None, None, FOUND[experiment])
    folder = tmp_path / experiment
    folder.mkdir()
    write_report(folder, Measured({}, {}, summary), study=True)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    show(page, folder, said)
    marks = page.locator(".picture").evaluate_all(
        "them => them.map(each => each.querySelectorAll('.role-mark path[d], .role-mark line').length)"
    )
    assert marks == MARKS[experiment]
    keep(page, f"report-{experiment}")
    page.close()
    assert said == [(folder / "report.html").as_uri()]


def test_an_incomplete_run_is_a_page_too(browser: Browser, tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "run").mkdir()
    folder = write_manifest(tmp_path / "run", complete=False, reason="the worker died")
    write_report(folder, read_run(folder))
    page = browser.new_page()
    show(page, folder, said)
    assert page.locator(".incomplete").inner_text() == "This run is incomplete: the worker died"
    page.close()
    assert said == [(folder / "report.html").as_uri()]
