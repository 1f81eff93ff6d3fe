"""Tests of the live page in a real browser: `scripts/browser-tests` starts this with what it needs.

WINDLASS_FAKE_RUN is the example that serves simulated runs, WINDLASS_BINARY the program that makes real ones,
WINDLASS_PAGE_SHOTS the directory for screenshots. With WINDLASS_PAGE_URL only the tests that hold for any run are done,
against that page.
"""

import base64
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

URL = os.environ.get("WINDLASS_PAGE_URL", "").rstrip("/")
URL = URL and URL + "/"
FAKE_RUN = os.environ.get("WINDLASS_FAKE_RUN")
BINARY = os.environ.get("WINDLASS_BINARY")
SHOTS = pathlib.Path(os.environ.get("WINDLASS_PAGE_SHOTS", "target/page-shots"))
PATIENCE_SECS = 60
LIMIT_BYTES_PER_SECOND = 20_000

CONTRASTS = """
const channels = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const found = [];
for (const element of document.querySelectorAll('body *')) {
  const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join('');
  if (!text || !element.getClientRects().length || element.closest('.skip, .unseen, noscript')) continue;
  const style = getComputedStyle(element);
  const ink = light(channels(element.namespaceURI.endsWith('svg') ? style.fill : style.color));
  const paper = light(behind(element));
  const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  if (ratio < 4.5) found.push(`${text}: ${ratio.toFixed(2)}`);
}
return found;
"""


class FakeRun:
    """A simulated run in a process of its own."""

    def __init__(self, *flags):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([FAKE_RUN, *flags], stdin=pipe, stdout=pipe, text=True)
        self.url = self.process.stdout.readline().strip()

    def go_wrong(self):
        """Lets the fault happen of a run with --fault-on-enter."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.communicate()


class RealRun:
    """A cluster of real processes on this machine: one ps, and workers that train until they are ended.

    With `started`, only so many of the workers are there.
    """

    def __init__(self, workers, *flags, model="mnist", started=None, steps=100000000):
        self.directory = tempfile.TemporaryDirectory()
        ps, *rest = [f"127.0.0.1:{port}" for port in free_ports(1 + workers)]
        cluster = ["--ps_hosts", ps, "--worker_hosts", ",".join(rest), "--steps", str(steps), *flags]
        self.url = f"http://{ps}/"
        self.tasks = {}
        started = workers if started is None else started
        for job, index in [("ps", 0), *(("worker", index) for index in range(started))]:
            command = [BINARY, "train", model, *cluster, "--job_name", job, "--task_index", str(index)]
            with open(os.path.join(self.directory.name, f"{job}-{index}.log"), "w") as log:
                process = subprocess.Popen(command, cwd=self.directory.name, stdout=log, stderr=log)
            self.tasks[job, index] = process

    def signal(self, job, index, number):
        self.tasks[job, index].send_signal(number)

    def end(self):
        for task in self.tasks.values():
            task.kill()
            task.wait()
        self.directory.cleanup()


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        options = webdriver.ChromeOptions()
        for flag in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(os.environ["WINDLASS_CHROMEDRIVER"])
        cls.browser = webdriver.Chrome(options=options, service=service)
        cls.browser.set_page_load_timeout(PATIENCE_SECS)
        SHOTS.mkdir(parents=True, exist_ok=True)

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()

    def setUp(self):
        self.may_lose_contact = False
        self.screen(1200, 900)
        self.scheme("light")
        self.command("Emulation.setScriptExecutionDisabled", value=False)

    def tearDown(self):
        # Before the run ends, which the page would complain about.
        self.browser.get("about:blank")
        complaints = [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] != "INFO"]
        if self.may_lose_contact:
            complaints = [complaint for complaint in complaints if "net::ERR" not in complaint]
        self.assertEqual(complaints, [], "the browser complains")

    def command(self, name, **parameters):
        return self.browser.execute_cdp_cmd(name, parameters)

    def screen(self, width, height):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def scheme(self, name):
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, *flags):
        """Opens the page of a run, and waits until the script has shown its first event."""
        url = URL
        if not url:
            self.run_shown = FakeRun(*flags)
            self.addCleanup(self.run_shown.end)
            url = self.run_shown.url
        self.browser.get(url)
        self.wait("the page to be live", lambda: "live" in self.text("#link") or "ended" in self.text("#link"))
        return url

    def wait(self, what, condition):
        WebDriverWait(self.browser, PATIENCE_SECS).until(lambda _: condition(), f"waited in vain for {what}")

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        script = "return document.querySelector(arguments[0])?.textContent ?? ''"
        return self.browser.execute_script(script, selector)

    def attribute(self, selector, name):
        script = "return document.querySelector(arguments[0])?.getAttribute(arguments[1])"
        return self.browser.execute_script(script, selector, name)

    def colour(self, selector, name):
        script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
        colour = self.browser.execute_script(script, selector, name)
        return [float(channel) for channel in re.findall(r"[\d.]+", colour)]

    def shoot(self, name):
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        (SHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def assert_fits(self):
        wide = self.browser.execute_script(
            "const all = document.documentElement; return [all.scrollWidth, all.clientWidth]"
        )
        self.assertLessEqual(wide[0], wide[1], "the page scrolls sideways")


class AnyRun(PageTest):
    def test_the_page_fits_a_phone(self):
        self.screen(360, 740)
        self.open("--workers", "8", "--fault", "straggler", "--warm-up", "60")
        self.assert_fits()
        self.shoot("phone")

    def test_every_text_is_legible_in_light_and_in_dark(self):
        self.open("--workers", "4", "--fault", "dead", "--warm-up", "90", "--fault-at", "70")
        for scheme in ["light", "dark"]:
            self.scheme(scheme)
            self.assertEqual(self.browser.execute_script(CONTRASTS), [], scheme)
            self.shoot(scheme)
        self.assertLess(max(self.colour("body", "backgroundColor")[:3]), 60, "the dark page is dark")

    def test_without_javascript_the_figures_and_curves_are_there(self):
        self.command("Emulation.setScriptExecutionDisabled", value=True)
        run = None if URL else FakeRun("--warm-up", "20")
        if run:
            self.addCleanup(run.end)
        self.browser.get(URL or run.url)
        source = self.browser.page_source
        self.assertRegex(source, r'<path class="line" d="M[\d.]+ ')
        self.assertRegex(source, r'id="headline"[^>]*>\w+')

    def test_nothing_is_loaded_from_elsewhere(self):
        url = self.open("--warm-up", "5")
        names = self.browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        self.assertTrue(names)
        self.assertEqual([name for name in names if not name.startswith(url)], [])


@unittest.skipIf(URL, "these need a simulated run")
class SimulatedRun(PageTest):
    def test_the_curve_moves(self):
        self.open("--warm-up", "2")
        before = self.attribute(".chart .line", "d")
        headline = self.text("#headline")
        self.wait("the curve to move", lambda: self.attribute(".chart .line", "d") != before)
        self.wait("the headline to change", lambda: self.text("#headline") != headline)

    def test_a_dead_worker_turns_red(self):
        self.open("--workers", "4", "--fault", "dead", "--fault-on-enter")
        row = "[data-list=workers] tr:nth-child(4)"
        self.assertIn("alive", self.text(f"{row} .badge"))
        self.run_shown.go_wrong()
        self.wait("the worker to be dead", lambda: "dead" in self.text(f"{row} .badge"))
        red, green, blue = self.colour(f"{row} .badge", "color")[:3]
        self.assertGreater(red, 2 * max(green, blue), "its badge is red")
        self.assertIn("✕", self.text(f"{row} .badge"), "and can be told without colour")
        self.assertIn("worker 3 is dead", self.text("#headline"))
        self.assertEqual(self.attribute(".cluster [data-item]:nth-of-type(4)", "data-tone"), "bad")
        self.assertIn("worker 3 declared dead", self.text(".events"))

    def test_the_straggler_is_named(self):
        self.open("--workers", "4", "--fault", "straggler", "--fault-at", "1", "--warm-up", "3")
        self.wait("a verdict", lambda: "Worker 3 is a chronic straggler" in self.text(".findings"))
        self.assertIn("its network is slow", self.text(".findings"))

    def test_a_hang_is_told_as_a_chain(self):
        self.open("--workers", "4", "--fault", "hang", "--fault-at", "3", "--warm-up", "10")
        self.wait("the chain", lambda: "for ps 1 at step" in self.text(".chains"))
        self.assertIn("Stuck at step", self.text("#headline"))
        self.assertIn("Ps 1 has been silent for", self.text(".chains"))
        self.shoot("hang")

    def test_no_worker_one_worker_and_many_are_shown(self):
        for workers in [0, 1, 32]:
            with self.subTest(workers=workers):
                self.open("--workers", str(workers), "--servers", "4", "--warm-up", "70")
                self.assertEqual(len(self.all("[data-list=workers] tr")), workers)
                self.assertEqual(len(self.all(".speeds li")), workers)
                self.assertEqual(len(self.all(".cluster [data-item]")), workers + 4)
                self.shoot(f"{workers}-workers")
                self.screen(360, 740)
                self.assert_fits()
                self.shoot(f"{workers}-workers-phone")
                self.screen(1200, 900)

    def test_a_failed_run_says_why(self):
        self.open("--fault", "failed", "--fault-at", "1")
        self.wait("the failure", lambda: "Failed at step" in self.text("#headline"))
        self.assertIn("did not come back", self.text("#headline"))
        self.assertIn("has ended", self.text("#link"))

    def test_a_chart_can_be_read_by_keyboard(self):
        self.open("--warm-up", "20")
        plot = self.all(".chart .plot")[0]
        self.browser.execute_script("document.querySelector('.skip').focus()")
        for _ in range(10):
            self.browser.switch_to.active_element.send_keys(Keys.TAB)
            if self.browser.switch_to.active_element == plot:
                break
        self.assertEqual(self.browser.switch_to.active_element, plot)
        plot.send_keys(Keys.HOME)
        self.assertRegex(self.text(".chart .reading"), r"^step \d+: [\d.]+$")
        self.assertEqual(self.attribute(".chart .cursor", "visibility"), "visible")
        plot.send_keys(Keys.ESCAPE)
        self.assertIn("at step", self.text(".chart .reading"))

    def test_a_page_whose_run_is_gone_says_so(self):
        self.may_lose_contact = True
        run = FakeRun("--warm-up", "2")
        self.browser.get(run.url)
        self.wait("the page to be live", lambda: "live" in self.text("#link"))
        run.end()
        self.wait("word of it", lambda: "lost contact" in self.text("#link"))

    def test_a_viewer_of_many_workers_is_sent_little(self):
        run = FakeRun("--workers", "32", "--servers", "4", "--warm-up", "70", "--fault", "straggler")
        self.addCleanup(run.end)
        with urllib.request.urlopen(run.url + "events") as response:
            sizes, first = [], None
            while len(sizes) < 12:
                size = len(response.readline())
                if size > 20:
                    first = first or time.monotonic()
                    sizes.append(size)
            per_second = sum(sizes[1:]) / (time.monotonic() - first)
        print(f"32 workers: first event {sizes[0]:,} bytes, then {per_second:,.0f} bytes/s")
        self.assertLess(per_second, LIMIT_BYTES_PER_SECOND)

    def test_the_status_is_json(self):
        url = self.open("--workers", "2")
        with urllib.request.urlopen(url + "status.json") as response:
            self.assertEqual(len(json.load(response)["workers"]), 2)


@unittest.skipUnless(BINARY, "these need the program itself")
class TrainingRun(PageTest):
    def open_run(self, workers, *flags, until="Training: step", **options):
        """Opens the page of a run, and waits until its headline says so."""
        self.run_shown = RealRun(workers, *flags, **options)
        self.addCleanup(self.run_shown.end)
        self.wait("the page to answer", lambda: self.answers(self.run_shown.url))
        self.browser.get(self.run_shown.url)
        self.wait(f"{until!r} in the headline", lambda: until in self.text("#headline"))

    def leave_run(self):
        # Before the run ends, which the page would complain about.
        self.browser.get("about:blank")
        self.run_shown.end()

    def answers(self, url):
        try:
            return urllib.request.urlopen(url, timeout=1).status == 200
        except OSError:
            return False

    def test_the_curve_moves(self):
        self.open_run(2)
        self.wait("a curve", lambda: self.attribute(".chart .line", "d"))
        before = self.attribute(".chart .line", "d")
        headline = self.text("#headline")
        self.wait("the curve to move", lambda: self.attribute(".chart .line", "d") != before)
        self.wait("the headline to change", lambda: self.text("#headline") != headline)
        self.shoot("real")

    def test_a_killed_worker_turns_red(self):
        self.open_run(3)
        row = "[data-list=workers] tr:nth-child(3)"
        self.wait("the worker to live", lambda: "alive" in self.text(f"{row} .badge"))
        self.run_shown.signal("worker", 2, signal.SIGKILL)
        killed = time.monotonic()
        self.wait("the worker to be dead", lambda: "dead" in self.text(f"{row} .badge"))
        print(f"a killed worker was red after {time.monotonic() - killed:.1f} s")
        red, green, blue = self.colour(f"{row} .badge", "color")[:3]
        self.assertGreater(red, 2 * max(green, blue), "its badge is red")
        self.assertIn("worker 2 is dead", self.text("#headline"))
        self.wait("the event", lambda: "worker 2 is gone" in self.text(".events"))
        self.shoot("real-killed")

    def test_a_stopped_worker_is_named(self):
        # In sync mode the others wait for it; otherwise it is compared with them.
        for mode, named in [("async", "straggler Worker 2 "), ("sync", "holds up Worker 2 has been silent for ")]:
            with self.subTest(mode=mode):
                self.open_run(3, "--mode", mode)
                self.run_shown.signal("worker", 2, signal.SIGSTOP)
                self.wait("its name", lambda: any(named in finding for finding in self.findings()))
                self.shoot(f"real-stopped-{mode}")
                self.run_shown.signal("worker", 2, signal.SIGCONT)
                self.leave_run()

    def test_a_page_whose_ps_0_is_suspended_does_not_call_itself_live(self):
        self.open_run(1)
        self.wait("a live page", lambda: "live" in self.text("#link") and "not live" not in self.text("#link"))
        self.run_shown.signal("ps", 0, signal.SIGSTOP)
        self.wait("word of it", lambda: "not live: lost contact" in self.text("#link"))
        self.shoot("real-suspended-ps")
        self.run_shown.signal("ps", 0, signal.SIGCONT)
        self.wait("a live page", lambda: "not live" not in self.text("#link"))

    def test_an_open_page_sees_how_its_run_ended(self):
        # The browser asks again and again whether it goes on.
        self.may_lose_contact = True
        self.open_run(1, model="linear", steps=200000)
        tasks = self.run_shown.tasks.values()
        self.wait("the end of the run", lambda: all(task.poll() is not None for task in tasks))
        self.wait("word of it", lambda: "has ended" in self.text("#link"))
        self.assertIn("Over: step 200,000 reached", self.text("#headline"))
        self.shoot("real-over")

    def findings(self):
        """The findings, each as a line without the badge's symbol."""
        words = (re.sub(r"[^\w.,:;()' ]", " ", finding.text) for finding in self.all(".findings li"))
        return [" ".join(line.split()) for line in words]

    def test_no_worker_one_worker_and_many_are_shown_on_a_screen_and_on_a_phone(self):
        for workers, started, until in [(2, 0, "aiting for worker 0"), (1, 1, "Training: step"), (32, 32, "Training: step")]:
            with self.subTest(started=started):
                self.open_run(workers, model="linear", started=started, until=until)
                alive = lambda: [badge for badge in self.all("[data-list=workers] .badge") if "alive" in badge.text]
                self.wait("the workers", lambda: len(alive()) == started)
                self.shoot(f"real-{started}-workers")
                self.screen(360, 740)
                self.assert_fits()
                self.shoot(f"real-{started}-workers-phone")
                self.screen(1200, 900)
                self.leave_run()

    def test_towers_are_shown(self):
        self.open_run(1, "--towers", "2")
        self.wait("the towers", lambda: "on 2 × cpu:0" in self.text("[data-list=workers]"))
        self.shoot("real-towers")


if __name__ == "__main__":
    unittest.main(verbosity=2)
