"""A headless Chromium, told what to do by its own protocol (CDP), over one websocket for each page."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

__all__ = ["Chromium", "Page", "chromium", "find_chromium"]

#: Seconds after which something hangs, on the busiest machine.
PATIENCE = 60.0
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1", "about:blank"),
)


def find_chromium() -> str | None:
    """Debian's ``chromium``, or what others call it."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One page of a browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        #: What the page has written to its console, and what it has thrown.
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._socket.recv(timeout=PATIENCE))
            if said.get("id") == self._number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']['message']}")
                result: dict[str, Any] = said["result"]
                return result
            self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        match said.get("method"):
            case "Runtime.exceptionThrown":
                details = said["params"]["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description", details["text"]))
            case "Log.entryAdded" if said["params"]["entry"]["level"] == "error":
                entry = said["params"]["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")

    def evaluate(self, expression: str) -> Any:
        """What an expression of JavaScript comes to; raises what it throws."""
        said = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise RuntimeError(f"{expression}: {said['exceptionDetails']}")
        return said["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(RuntimeError):  # a page that is being left
                if self.evaluate(f"Boolean({expression})"):
                    return
            if time.monotonic() > deadline:
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"{expression} did not happen:\n{text}\n{self.complaints}")
            time.sleep(0.02)

    def go_to(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        """How large the screen is, and what the reader's system says about light and dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def type(self, text: str) -> None:
        """As a keyboard does."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        more = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def headers(self, **headers: str) -> None:
        """Sent along with every request from now on."""
        self.call("Network.enable")
        self.call("Network.setExtraHTTPHeaders", headers=headers)


class Chromium:
    """A browser that runs."""

    def __init__(self, port: int) -> None:
        self._port = port

    @contextlib.contextmanager
    def page(self) -> Iterator[Page]:
        """A new page, until the end of the block."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            url = json.load(answer)["webSocketDebuggerUrl"]
        with connect(url, max_size=None, open_timeout=PATIENCE, proxy=None) as socket:
            page = Page(socket)
            yield page
            page.call("Page.close")


@contextlib.contextmanager
def chromium(binary: str | None = None) -> Iterator[Chromium]:
    """A browser with a profile of its own, gone at the end of the block."""
    binary = binary or find_chromium()
    if binary is None:
        raise RuntimeError("there is no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        command = [binary, f"--user-data-dir={profile}", *_OPTIONS]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            said = Path(profile) / "DevToolsActivePort"
            deadline = time.monotonic() + PATIENCE
            while not said.exists() or not said.read_text().strip():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{binary} did not start")
                time.sleep(0.02)
            yield Chromium(int(said.read_text().split()[0]))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
