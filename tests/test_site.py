"""The site in Chromium, at the width of a desktop and of a phone. tox's environment `site` builds it and runs this."""

import contextlib
import functools
import glob
import html
import http.server
import os
import re
import shutil
import socketserver
import threading

import pages
import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.support.wait import WebDriverWait

SITE = os.environ.get("LEGACYGA_SITE", "")
PAGES = sorted(os.path.relpath(path, SITE) for path in glob.glob(os.path.join(SITE, "**", "*.html"), recursive=True))
pytestmark = pytest.mark.capability("house")

ARGUMENTS = """
headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update
disable-sync
"""
# Of each code block and of the page: what stands beyond its right edge.
CUT = """
const blocks = [...document.querySelectorAll("pre, pre code")];
const cut = blocks.filter(each => each.scrollWidth > each.clientWidth).map(each => each.innerText.slice(0, 60));
const beyond = document.documentElement.scrollWidth > innerWidth ? ["the page itself"] : [];
return [innerWidth, blocks.length, beyond.concat(cut)];
"""
# What people type: the pages that answer it.
ANSWERS = {
    "OOM": ["quickstart/micro_batch.html"],
    "out of memory": ["quickstart/micro_batch.html", "micro_batch.html"],
    "ResourceExhaustedError": ["quickstart/micro_batch.html"],
    "ResourceExhaustedError: OOM when allocating tensor with shape[64,512]": ["quickstart/micro_batch.html"],
    "CUDA": ["quickstart/micro_batch.html"],
    "CUDA_ERROR_OUT_OF_MEMORY": ["quickstart/micro_batch.html"],
    "batch size": ["quickstart/micro_batch.html"],
    "Adam": ["quickstart/fit.html"],
    "batch normalization": ["batch_normalization.html"],
    "wrap": ["guide.html", "reference.html"],
}
FOUND = """
const links = document.querySelectorAll(".md-search-result__item > .md-search-result__link");
return [...links].slice(0, 3).map(each => new URL(each.href).pathname.slice(1));
"""


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    # A browser opens connections that it does not use.
    daemon_threads = True


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    server = Server(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "http://127.0.0.1:{}/".format(server.server_port)
    server.shutdown()


@pytest.fixture(scope="module")
def browser():
    paths = [shutil.which("chromium"), shutil.which("chromedriver")]
    if not all(paths):
        pytest.exit("The site is looked at in Chromium, which is not here: apt-get install chromium chromium-driver", 1)
    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for each in ARGUMENTS.split():
        options.add_argument("--" + each)
    driver = webdriver.Chrome(options, webdriver.ChromeService(paths[1]))
    yield driver
    driver.quit()


def set_width(browser, width):
    # A window itself is never narrower than 500.
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_no_block_scrolls_sideways(browser, address):
    blocks, beyond = 0, {}
    for page in PAGES:
        browser.get(address + page)
        for width in (1400, 390):
            set_width(browser, width)
            seen, number, cut = browser.execute_script(CUT)
            assert seen == width
            blocks += number
            beyond.update({(page, width): cut} if cut else {})
    assert beyond == {}
    assert len(PAGES) > 30 and blocks > 600


def test_the_button_copies_the_lines_as_they_are(browser, address):
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    set_width(browser, 390)
    browser.get(address + "quickstart/fit.html")
    (block,) = [each for each in pages.blocks("docs/quickstart/fit.md") if each.mark and "name" in each.mark]
    (code,) = [each for each in browser.find_elements("css selector", "pre") if "def distance" in each.text]
    code.find_element("css selector", ".md-code__button").click()
    wait = WebDriverWait(browser, 10)
    wait.until(lambda _: browser.execute_script("return navigator.clipboard.readText()") == block.source.strip())


@pytest.mark.parametrize("typed", sorted(ANSWERS))
def test_a_search_finds_the_page_that_answers(browser, address, typed):
    set_width(browser, 1400)
    browser.get(address + "index.html")
    box = browser.find_element("css selector", ".md-search__input")
    box.send_keys(typed)
    found = []

    def answered(_):
        found[:] = browser.execute_script(FOUND)
        return set(ANSWERS[typed]) <= set(found)

    with contextlib.suppress(TimeoutException):
        WebDriverWait(browser, 10).until(answered)
    assert set(ANSWERS[typed]) <= set(found)


def test_the_matrix_is_not_searched():
    with open(os.path.join(SITE, "search", "search_index.json"), encoding="utf-8") as file:
        text = file.read()
    assert '"location":"guide.html' in text and "compat_matrix.html" not in text


def test_the_reference_names_no_private_class():
    with open(os.path.join(SITE, "reference.html"), encoding="utf-8") as file:
        text = html.unescape(re.sub(r"<[^>]+>", "", file.read()))
    assert "lr=0.01," in text and "AccumulatingOptimizer" in text
    assert re.findall(r"(?<![\w./-])_[A-Za-z]\w+", text) == []


def test_each_page_leads_to_its_neighbours_and_to_the_repository():
    with open(os.path.join(SITE, "guide.html"), encoding="utf-8") as file:
        text = file.read()
    assert [text.count('class="md-footer__link md-footer__link--' + each) for each in ("prev", "next")] == [1, 1]
    # tox.ini sets it.
    assert '<a href="https://github.com/example/legacyga"' in text and 'data-md-component="source"' not in text
