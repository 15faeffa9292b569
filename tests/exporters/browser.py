"""A headless Chromium, driven through its debugging pipe: two file descriptors and JSON, no further package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60.0  #: for an answer; much more than a loaded machine takes


def found() -> str | None:
    """The program, where there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a browser of its own. `events` are the messages that came unasked, oldest first."""

    def __init__(self, program: str, profile: Path) -> None:
        requests, self._write = os.pipe()
        self._read, answers = os.pipe()
        # the pipe's ends are to be 3 and 4 in the browser: the shell puts them there
        script = f'exec "$0" "$@" 3<&{requests} 4>&{answers}'
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        quiet = ["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, program, *arguments, *quiet, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(requests, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(requests)
        os.close(answers)
        self._buffer, self._count, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)  # it leaves when its pipe is closed
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._count += 1
        own = self._count
        message: dict[str, Any] = {"id": own, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == own:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "the browser is gone"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path) -> None:
        """Load a file and wait until everything that belongs to it is there."""
        self.events.clear()
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def look(self, width: int, height: int = 900, dark: bool = False, media: str = "screen") -> None:
        """The size of the window, the user's colour scheme, the medium."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def picture(self, path: Path, whole: bool = False) -> None:
        """Write what is to be seen as a PNG; with `whole` all of the page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
