"""A real browser for the tests: headless Chromium, spoken to over a pipe in its DevTools protocol."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"]
FLAGS += ["--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe"]


@contextlib.contextmanager
def browse(folder):
    """A `Page`, and the end of its browser afterwards; `folder` is for the browser's own files."""
    commands, answers = os.pipe(), os.pipe()
    # the browser reads its commands from 3 and writes its answers to 4: the shell puts the pipes there
    ends = f'exec "$@" 3<&{commands[0]} 4>&{answers[1]}'
    line = ["bash", "-c", ends, "browser", PROGRAM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(line, pass_fds=(commands[0], answers[1]), **quiet)
    os.close(commands[0])
    os.close(answers[1])
    page = Page(commands[1], answers[0])
    try:
        yield page.attach()
    finally:
        with contextlib.suppress(OSError, AssertionError):
            page.call("Browser.close", of_browser=True)
        os.close(commands[1])
        os.close(answers[0])
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Page:
    """One tab. `errors` gathers what reaches the console as an error, and exceptions nobody caught."""

    def __init__(self, commands, answers):
        self.commands, self.answers = commands, answers
        self.numbers, self.buffer, self.session, self.errors, self.events = itertools.count(1), b"", None, [], []

    def attach(self):
        target = self.call("Target.createTarget", url="about:blank", of_browser=True)["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True, of_browser=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def call(self, method, *, of_browser=False, **parameters):
        message = {"id": next(self.numbers), "method": method, "params": parameters}
        if not of_browser:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != message["id"]:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path, *, dark=False):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while "Page.loadEventFired" not in [event["method"] for event in self.events]:
            self._note(self._receive())

    def requested(self):
        """The addresses that the last page asked for, itself among them."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [request["request"]["url"] for request in sent]

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector):
        """With the mouse, in the middle of an element."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.evaluate(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self):
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def _note(self, event):
        self.events.append(event)
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(str(parameters["args"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])

    def _receive(self, seconds=60):
        end = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            assert ready, f"the browser did not answer in {seconds} s"
            data = os.read(self.answers, 1 << 16)
            assert data, "the browser has ended"
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)
