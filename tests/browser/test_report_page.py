"""The report in a real browser: nothing sticks out, nothing is loaded, nothing is complained about."""

import json
import shutil

import duckdb
import pytest

from dllm_audit.claims.registry import Registry, load_claims
from dllm_audit.claims.schema import Expectation, Mechanism
from dllm_audit.report.build import render
from dllm_audit.report.page import gather
from dllm_audit.store.database import Store

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="No Chromium executable was found (apt-get install chromium)."),
]


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright).")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(results, tmp_path_factory):
    """The report with every published claim, one of them put to the test by the runs: faster, with a caveat."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    mechanism = Mechanism(
        shows="A threshold answers faster.",
        backend="dualcache",
        model="tiny-mdm",
        baseline="dualcache",
        baseline_settings={"tokens_per_step": 1},
        task="gsm_mini",
        settings={"threshold": 0.9},
        quantity="speed ratio",
        margin_points=2.0,
        expect=Expectation(low=1.0, wording="above 1x"),
    )
    first, *others = load_claims().claims
    registry = Registry([first.model_copy(update={"mechanisms": [mechanism]}), *others], [])
    with Store.open(results) as store:
        path.write_text(render(gather(store, registry)), encoding="utf-8")
    return path


@pytest.fixture(params=[(1280, "light"), (390, "light"), (390, "dark")], ids=["desk", "phone", "phone-dark"])
def page(request, browser, file):
    """The opened report with everything that it asked for and complained about."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.requested, page.complaints = [], []
    page.on("request", lambda asked: page.requested.append(asked.url))
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(file.as_uri())
    yield page
    page.close()


def test_nothing_sticks_out_of_the_page(page):
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


def test_nothing_sticks_out_when_everything_is_opened(page):
    # Of each kind of fold some: all 200 claims opened at once only make the test slow.
    page.evaluate(
        "for (const s of document.querySelectorAll('section'))"
        " [...s.querySelectorAll('details')].slice(0, 12).forEach(d => d.open = true)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


def test_the_page_asks_for_nothing_and_the_browser_has_no_complaint(page, file):
    assert page.requested == [file.as_uri()]
    assert page.complaints == []


def test_a_verdict_with_a_caveat_leads_to_its_claim_in_the_register_and_opens_it(page):
    card = page.locator("article.check")
    assert card.locator(".badge").first.inner_text() == "mechanism seen here with a caveat"
    assert card.locator(".caveats li").count() > 0
    target = card.locator("a").first.get_attribute("href")
    assert not page.locator(f"[id='{target[1:]}']").is_visible()
    card.locator("a").first.click()
    assert page.locator(f"[id='{target[1:]}']").is_visible()


def test_no_option_of_a_command_is_broken_over_two_lines(page):
    page.evaluate("document.querySelectorAll('#checks details').forEach(d => d.open = true)")
    broken = page.evaluate(
        "[...document.querySelectorAll('#checks pre .nobreak')].filter(w => w.getClientRects().length > 1).length"
    )
    assert page.locator("#checks pre .nobreak").count() > 10
    assert broken == 0


HOSTILE = (
    "\"><script>window.ran = 1</script><img src='https://example.org/x.png' onerror='window.ran = 2'>"
    "<svg onload='window.ran = 3'><a href='javascript:window.ran = 4'></style></title>\u202e\x00&lt;" + "w" * 80
)


@pytest.fixture(scope="module")
def hostile_file(results, tmp_path_factory):
    """A report in which every text that a user, a model, a plugin or a claim gives wants to take over the page."""
    folder = tmp_path_factory.mktemp("hostile")
    database, path = folder / "results.duckdb", folder / "report.html"
    shutil.copy(results, database)
    columns = {
        "runs": ("backend", "provenance", "fidelity", "model", "task"),
        "requests": ("prompt", "text", "stop", "error_type", "error_message"),
        "answers": ("task", "filter", "metric", "response", "target"),
        "metrics": ("task", "filter", "metric"),
    }
    with duckdb.connect(str(database)) as connection:
        for table, names in columns.items():
            changes = ", ".join(f"{name} = {name} || $hostile" for name in names)
            connection.execute(f"UPDATE {table} SET {changes}", {"hostile": HOSTILE})
        for run_id, *texts in connection.execute("SELECT run_id, settings, manifest FROM runs").fetchall():
            settings, manifest = (json.loads(text) | {HOSTILE: HOSTILE} for text in texts)
            manifest |= {"notes": [HOSTILE], "environment": {**manifest.get("environment", {}), HOSTILE: HOSTILE}}
            connection.execute(
                "UPDATE runs SET settings = ?, manifest = ? WHERE run_id = ?",
                [json.dumps(settings), json.dumps(manifest), run_id],
            )
    first = load_claims().claims[0]
    source = first.source.model_copy(update={"title": HOSTILE, "identifier": HOSTILE, "locator": HOSTILE})
    claim = first.model_copy(update={"statement": HOSTILE, "vendor": HOSTILE, "system": HOSTILE, "source": source})
    with Store.open(database) as store:
        path.write_text(render(gather(store, Registry([claim], []))), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 390])
def test_text_that_wants_to_take_over_the_page_is_only_text(browser, hostile_file, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    requested, complaints = [], []
    page.on("request", lambda asked: requested.append(asked.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(hostile_file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("window.ran") is None
    assert page.locator("script, img, iframe, object, [onload], [onerror], a[href^='javascript']").count() == 0
    assert requested == [hostile_file.as_uri()]
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()


def test_the_style_sheet_is_let_through_by_the_policy(page):
    assert page.evaluate("getComputedStyle(document.querySelector('header')).maxWidth") == "1184px"


def test_one_of_the_two_widths_of_each_chart_is_seen(page):
    seen = page.evaluate(
        "[...document.querySelectorAll('.chart')].map(c => [...c.children].filter(d => d.offsetWidth > 0).length)"
    )
    assert seen
    assert set(seen) == {1}


def test_no_chart_is_cut_off(page):
    cut = page.evaluate(
        "[...document.querySelectorAll('.chart svg')].filter(s => s.offsetParent !== null || s.getBoundingClientRect().width > 0)"
        ".flatMap(s => [...s.querySelectorAll('text')].filter(t => {"
        " const a = t.getBoundingClientRect(), b = s.getBoundingClientRect();"
        " return a.width > 0 && (a.left < b.left - 1 || a.right > b.right + 1) }).map(t => t.textContent))"
    )
    assert cut == []


def test_text_and_background_stay_readable(page):
    # Contrast of body text by WCAG: at least 7 to 1, in light and dark.
    ratio = page.evaluate(
        """() => {
          const lum = c => { const v = c.match(/\\d+/g).slice(0, 3).map(x => x / 255)
            .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
            return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2] };
          const s = getComputedStyle(document.body), a = lum(s.color), b = lum(s.backgroundColor);
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) }"""
    )
    assert ratio >= 7


def test_nothing_is_cut_off_on_paper(browser, file):
    # 718 px are the width between the margins of A4.
    page = browser.new_page(viewport={"width": 718, "height": 900})
    page.emulate_media(media="print")
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 718
    page.close()
