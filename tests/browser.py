"""A headless Chromium, driven by its WebDriver through plain HTTP, for tests of pages.

`find()` says whether there is one. Nothing is downloaded, and the browser has a profile of its own.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
KEYS = {"Enter": "\ue007", "ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014"}
KEYS |= {"ArrowDown": "\ue015", "Escape": "\ue00c", "End": "\ue010", "Home": "\ue011"}
PATIENCE = 60
"""Seconds until a page that is not ready has failed."""


def find() -> tuple[str, str] | None:
    """The paths of the browser and of its driver, None where there are none."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """A window of 1400 by 900, as a context manager."""

    def __init__(self, *further: str) -> None:
        found = find()
        assert found is not None
        self._profile = tempfile.mkdtemp(prefix="ingot-browser-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._root = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen(
            [found[1], f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        arguments = [*FLAGS, f"--user-data-dir={self._profile}", "--window-size=1400,900", *further]
        options = {"goog:chromeOptions": {"binary": found[0], "args": arguments}}
        self._session = ""
        self._wait_for_driver()
        made = self._send("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self._session = f"/session/{made['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._send("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait()
            shutil.rmtree(self._profile, ignore_errors=True)

    def _wait_for_driver(self) -> None:
        for _ in range(10 * PATIENCE):
            try:
                self._send("GET", "/status")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise TimeoutError("the driver of the browser does not answer")

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        url = f"{self._root}{self._session}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def open(self, file: Path) -> float:
        """Opens a page of a report; the seconds until it was drawn."""
        self._send("POST", "/url", {"url": file.absolute().as_uri()})
        for _ in range(20 * PATIENCE):
            ready, error, seconds = self.run(
                "const p = window.ingotPage || {}; return [p.ready, p.error, p.seconds]"
            )
            assert not error, error
            if ready:
                return float(seconds)
            time.sleep(0.05)
        raise TimeoutError("the page is not ready")

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that a selector finds."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return list(self.run(script, selector))

    def value(self, selector: str) -> float:
        """The number that an element shows, before it was rounded."""
        script = "return document.querySelector(arguments[0]).dataset.value"
        return float(self.run(script, selector))

    def click(self, selector: str) -> None:
        """A real click on the first element that a selector finds."""
        found = self._send("POST", "/element", {"using": "css selector", "value": selector})
        (element,) = found.values()
        self._send("POST", f"/element/{element}/click", {})

    def press(self, *keys: str) -> None:
        """Real keys, one after the other, for what has the focus."""
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self._act({"type": "key", "id": "keys", "actions": actions})

    def point(self, x: float, y: float) -> None:
        """Moves the mouse there."""
        move = {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}
        self._act({"type": "pointer", "id": "mouse", "actions": [move]})

    def _act(self, source: dict[str, Any]) -> None:
        self._send("POST", "/actions", {"actions": [source]})

    def screenshot(self, file: Path) -> None:
        """What is seen, as a PNG file."""
        file.write_bytes(base64.b64decode(self._send("GET", "/screenshot")))
