"""`treadle view` in a real browser: keys, filters, folding, light and dark, no script, hostile text, and no outside."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from support.browser import opened
from support.pictures import png
from support.runs.command_line import TREADLE, environment
from support.tables.score_tables import new_run, put_rows
from support.tables.viewer_run import agent_row, dialogue_row, example_run, question_row, served

from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.planning.tools.pictures import PICTURES, read_picture
from treadle.environments.rollouts.tables import ROLLOUTS

HOSTILE = (
    "<script>document.title='owned'</script><img src='https://pages.example/x.png' onerror=\"document.title='owned'\">"
    "\" onmouseover=\"document.title='owned'\" '><svg onload=\"document.title='owned'\"> \x1b[31mred\x1b[0m "
    "</div></li></ol></main><style>body{display:none}</style> \u202eabc\u202c \u0645\u0631\u062d\u0628\u0627 "
    "javascript:document.title='owned' " + "\u0301" * 300
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(example_run(tmp_path_factory.mktemp("run"))) as url:
        yield url


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a run whose question, data set, model and texts are hostile, one of them ten megabytes long."""
    run = new_run(tmp_path_factory.mktemp("hostile"))
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", HOSTILE, [HOSTILE], dataset=HOSTILE)])
    huge = HOSTILE * 20_000
    parts = [("think", HOSTILE), ("search", HOSTILE), ("result", HOSTILE), ("think", huge), ("answer", HOSTILE)]
    names = {"dataset": HOSTILE, "model": HOSTILE, "operator": HOSTILE}
    put_rows(run, "1/rollouts@base", ROLLOUTS, [agent_row(ROLLOUTS, "h1", "q1", *parts, **names)])
    with served(run) as url:
        yield url


def test_keyboard_navigates_the_list_and_trajectories(page: Page, url: str, shots: Path) -> None:
    page.goto(url + "/?instance=1/rollouts@base")
    page.screenshot(path=shots / "list-light.png")
    for _ in range(3):
        page.keyboard.press("j")
    page.keyboard.press("k")
    focused = page.locator(":focus")
    expect(focused).to_have_attribute("href", re.compile(r"^/trajectory/1/rollouts@base/r2\?"))
    # Keys are heard once a page has loaded, which is what is waited for.
    for key, address in (
        ("Enter", r"/trajectory/1/rollouts@base/r2\?instance="),
        ("n", "/trajectory/1/rollouts@base/r3"),
        ("p", "/trajectory/1/rollouts@base/r2"),
        ("l", "/lineage/1/rollouts@base/r2"),
        ("t", "/trajectory/1/rollouts@base/r2"),
        ("u", r"/\?instance=1%2Frollouts%40base$"),
    ):
        page.keyboard.press(key)
        page.wait_for_url(re.compile(address))


def test_returning_to_the_list_restores_the_position(page: Page, url: str) -> None:
    page.goto(url + "/?instance=1/rollouts@base")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    for name in ("r2", "r3"):
        page.wait_for_url(re.compile("/trajectory/"))
        page.keyboard.press("n")
        page.wait_for_url(re.compile(f"/rollouts@base/{name}"))
    page.keyboard.press("l")
    page.wait_for_url(re.compile("/lineage/"))
    page.keyboard.press("u")
    expect(page.locator(":focus")).to_have_attribute("href", re.compile("/rollouts@base/r3"))
    page.keyboard.press("j")
    expect(page.locator(":focus")).to_have_attribute("href", re.compile("/rollouts@base/r4"))
    # Once: setting another filter returns to the top.
    page.goto(url)
    expect(page.locator("tr .open:focus")).to_have_count(0)


def test_vote_replies_unfold_on_request(page: Page, url: str, shots: Path) -> None:
    page.goto(url + "/trajectory/1/rollouts@base/r1?q=vorna")
    reply = page.get_by_text("The call for Vorna was of use (3).")
    expect(reply).to_be_hidden()
    page.get_by_text("10 replies").click()
    expect(reply).to_be_visible()
    expect(page.locator("#s2 .text mark").first).to_be_visible()
    page.screenshot(path=shots / "votes-light.png", full_page=True)


def test_results_unfold_individually_and_all_at_once(page: Page, url: str, shots: Path) -> None:
    page.goto(url + "/trajectory/1/rollouts@base/r3")
    results = page.locator(".segment > details")
    inside = results.first.locator(".text")
    expect(inside).to_be_hidden()
    for _ in range(3):
        page.keyboard.press("j")
    expect(page.locator(":focus")).to_have_id("s2")
    page.keyboard.press("Enter")
    expect(inside).to_be_visible()
    expect(results.nth(1)).not_to_have_attribute("open", "")
    page.keyboard.press("e")
    expect(results.nth(1)).to_have_attribute("open", "")
    page.screenshot(path=shots / "trajectory-light.png", full_page=True)
    # Who unfolds all reads on with all unfolded.
    page.keyboard.press("p")
    expect(page.locator(".segment > details").first).to_have_attribute("open", "")


def test_dialogue_reads_as_turns(page: Page, plain_page: Page, tmp_path: Path, shots: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "Guess my number.", [])])
    row = dialogue_row("d1", "q1", ("text", "I say 32"), ("user", HOSTILE), ("text", "I say 8"), turn_rewards=[0.5, -1])
    put_rows(run, "1/rollouts@base", ROLLOUTS, [row])
    with served(run) as url:
        for browsed in (page, plain_page):
            browsed.goto(url + "/trajectory/1/rollouts@base/d1")
            speakers = browsed.locator(".speaker")
            expect(speakers).to_have_text(["policy, turn 1", "partner", "policy, turn 2"])
            expect(browsed.locator(".turn-reward")).to_have_text(["reward 0.50", "reward −1.00"])
            expect(browsed.locator(".kind-frame").first).to_be_hidden()
            assert browsed.title() != "owned"
        page.screenshot(path=shots / "dialogue-light.png", full_page=True)
        for _ in range(2):
            page.keyboard.press("j")
        expect(page.locator(":focus")).to_have_id("s2")  # Hidden segments are passed over.
        for browsed in (page, plain_page):
            browsed.get_by_text("Template text").click()
            expect(browsed.locator(".kind-frame").first).to_be_visible()


def test_search_and_help_open_by_key(page: Page, url: str, shots: Path) -> None:
    page.goto(url)
    page.keyboard.press("?")
    expect(page.locator("dialog.keys")).to_be_visible()
    page.screenshot(path=shots / "keys-light.png")
    page.keyboard.press("n")  # Keys rest while they are explained.
    page.keyboard.press("Escape")
    expect(page.locator("dialog.keys")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("keyerror")
    page.keyboard.press("Enter")
    expect(page).to_have_url(url + "/?q=keyerror")
    expect(page.get_by_role("heading", level=1)).to_have_text("2 of 11 trajectories")


def test_filters_can_be_set_and_cleared(page: Page, url: str) -> None:
    page.goto(url)
    filters = page.get_by_role("navigation", name="Filters")
    filters.get_by_role("link", name="wrong 3").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("3 of 11 trajectories")
    filters.get_by_role("link", name="timeout 1").click()
    expect(page.locator(".lines tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Remove filter: Verdict wrong").click()
    expect(page).to_have_url(url + "/?tools=timeout")
    page.get_by_role("columnheader", name="Tokens").get_by_role("link").click()
    expect(page).to_have_url(url + "/?tools=timeout&sort=-tokens")
    page.go_back()
    expect(page).to_have_url(url + "/?tools=timeout")


def test_loss_masks_are_shown_on_request(page: Page, url: str, shots: Path) -> None:
    page.goto(url + "/trajectory/1/pools/p2")

    def background(place: int) -> str:
        return str(page.locator(f"#s{place} .text").evaluate("one => getComputedStyle(one).backgroundColor"))

    assert background(0) == "rgba(0, 0, 0, 0)"
    page.keyboard.press("m")
    expect(page.locator("#masks")).to_be_checked()
    assert background(0) == "rgb(220, 235, 251)" and background(2) == "rgba(0, 0, 0, 0)"
    page.screenshot(path=shots / "masks-light.png")


def test_edits_and_lineage_are_shown(page: Page, dark_page: Page, url: str, shots: Path) -> None:
    for shown, name in ((page, "light"), (dark_page, "dark")):
        shown.goto(url + "/changes/1/pools/p2")
        expect(shown.locator("ins").first).to_have_text("Ilme, says the first")
        shown.screenshot(path=shots / f"changes-{name}.png")
        shown.goto(url + "/lineage/1/pools/p2")
        expect(shown.locator(".tree .chosen")).to_contain_text("hint tail")
        shown.screenshot(path=shots / f"lineage-{name}.png")


def test_dark_mode_pages_are_dark(dark_page: Page, url: str, shots: Path) -> None:
    for path, name in (("/", "list"), ("/trajectory/1/rollouts@base/r1", "trajectory")):
        dark_page.goto(url + path)
        paper = dark_page.locator("body").evaluate("one => getComputedStyle(one).backgroundColor")
        assert paper == "rgb(17, 21, 27)"
        dark_page.screenshot(path=shots / f"{name}-dark.png")


FAINT_TEXTS = """() => {
  const parts = (colour) => { const found = colour.match(/[0-9.]+/g).map(Number); return [...found, 1].slice(0, 4); };
  const linear = (part) => part <= 10.3 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const ground = (element) => {
    const colour = parts(getComputedStyle(element).backgroundColor);
    return colour[3] === 1 ? colour : ground(element.parentElement);
  };
  const faint = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent.trim(), element = texts.currentNode.parentElement;
    if (!text || !element.checkVisibility()) continue;
    const both = [parts(getComputedStyle(element).color), ground(element)].map(luminance);
    const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    if (contrast < 4.5) faint.push([text.slice(0, 40), contrast]);
  }
  return faint;
}"""
"""Visible texts with a contrast of less than 4.5, as WCAG defines it, to what they stand on."""


def test_all_text_has_enough_contrast(page: Page, dark_page: Page, url: str) -> None:
    paths = (
        "/?verdict=right&sort=-score", "/?q=zzz", "/trajectory/1/rollouts@base/r1?q=vorna", "/changes/1/pools/p2",
        "/trajectory/1/rollouts@base/r3", "/trajectory/1/pools/p2", "/lineage/1/pools/p2",
        "/trajectory/1/rollouts@base/r5", "/trajectory/1/rl@phase-1/3.1.g%2F7%3F",
    )  # fmt: skip
    for path in paths:
        for shown in (page, dark_page):
            shown.goto(url + path)
            shown.keyboard.press("e")
            shown.keyboard.press("m")
            assert shown.evaluate(FAINT_TEXTS) == [], path


def test_everything_but_shortcuts_works_without_scripts(plain_page: Page, url: str) -> None:
    plain_page.goto(url)
    plain_page.get_by_role("searchbox").fill("vorna")
    plain_page.get_by_role("searchbox").press("Enter")
    expect(plain_page).to_have_url(url + "/?q=vorna")
    plain_page.get_by_role("navigation", name="Filters").get_by_role("link", name="1/pools").click()
    plain_page.locator(".open").nth(1).click()
    expect(plain_page).to_have_url(re.compile(r"/trajectory/1/pools/p2\?"))
    plain_page.get_by_text("Training targets").click()
    expect(plain_page.locator("#masks")).to_be_checked()
    # The result has what was searched for, so it is unfolded.
    result = plain_page.locator("#s2 .text")
    expect(result).to_be_visible()
    plain_page.locator("summary", has_text="result").click()
    expect(result).to_be_hidden()
    plain_page.locator("summary", has_text="result").click()
    expect(result).to_be_visible()
    plain_page.get_by_role("link", name="Next", exact=True).click()
    expect(plain_page).to_have_url(re.compile(r"/trajectory/1/pools/p3\?"))
    expect(plain_page.locator("[data-help]")).to_be_hidden()


def test_hostile_text_stays_text(page: Page, hostile: str, shots: Path) -> None:
    for path, name in (("/", "list"), ("/trajectory/1/rollouts@base/h1", "trajectory")):
        page.goto(hostile + path)
        page.screenshot(path=shots / f"hostile-{name}.png")
        assert page.title() != "owned" and page.locator("main script, main svg[onload], main img").count() == 0
        assert page.locator("body").is_visible()
        for _ in range(8):
            page.keyboard.press("j")
        # Nothing sticks out of the page, however long its words.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator("#s3 .gap a")).to_contain_text("characters left out")
    whole = page.request.get(hostile + str(page.locator("#s3 .gap a").get_attribute("href")))
    assert whole.headers["content-type"] == "text/plain; charset=utf-8" and len(whole.body()) > 10_000_000


def test_small_screens_need_no_horizontal_scrolling(page: Page, url: str, shots: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for path, name in (("/", "list"), ("/trajectory/1/pools/p2", "trajectory"), ("/changes/1/pools/p2", "changes")):
        page.goto(url + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        page.screenshot(path=shots / f"{name}-small.png")


def test_trusted_types_policy_blocks_raw_html(browser: Browser, url: str) -> None:
    with pytest.raises(AssertionError, match="requires 'TrustedHTML' assignment"), opened(browser) as page:
        page.goto(url)
        page.evaluate("try { document.body.insertAdjacentHTML('beforeend', '<img src=x>') } catch {}")


def test_view_command_serves_a_run_on_loopback_only(page: Page, tmp_path: Path) -> None:
    example_run(tmp_path / "outputs")
    command = [TREADLE, "view", "--run", "test", "--port", "0", "--no-open"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = process.stderr.readline()
            found = re.search(r"showing run test on (http://127\.0\.0\.1:(\d+)/)", said)
            assert found is not None, said
            page.goto(found[1])
            expect(page.get_by_role("heading", level=1)).to_have_text("11 trajectories")
            _expect_closed(int(found[2]))
        finally:
            process.send_signal(signal.SIGINT)
            assert process.stderr.read() == "treadle: stopped\n"
        assert process.wait() == 130


def _expect_closed(port: int) -> None:
    """Other addresses of this machine, which are those that others reach, do not answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.2", port))


def test_picture_of_a_call_is_drawn(page: Page, tmp_path: Path) -> None:
    run = new_run(tmp_path)
    picture = read_picture(png(40, 30))
    run.store(PICTURES).add(picture.digest, picture.data)
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "Where is it?")])
    call = {"tool": "visual_inspector", "argument": "{}", "status": "ok", "turn": 0, "note": picture.note}
    parts = [("visual_inspector", "{}"), ("result", "a field"), ("answer", "there")]
    row = agent_row(ROLLOUTS, "v1", "q1", *parts, tool_calls=json.dumps([call]))
    put_rows(run, "1/rollouts@base", ROLLOUTS, [row])
    with served(run) as url:
        page.goto(f"{url}/trajectory/1/rollouts@base/v1")
        drawn = page.get_by_role("img", name="Picture")
        expect(drawn).to_be_visible()
        assert drawn.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [40, 30]
