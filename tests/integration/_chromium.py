# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven by its protocol over two pipes."""

import base64
import json
import os
import shutil
import subprocess

EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


class Chromium:
    """A page of a browser of its own; a context manager.

    Parameters
    ----------
    profile : path
        An empty directory for its files.
    """

    def __init__(self, profile):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        self._buffer, self._n_sent = b"", 0

        def place_pipes():  # it reads descriptor 3 and writes 4
            high = [os.dup(to_browser), os.dup(from_browser)]
            for source, target in zip(high, (3, 4), strict=True):
                os.dup2(source, target)

        self._process = subprocess.Popen(
            [
                *(str(EXECUTABLE), "--headless", "--no-sandbox", "--disable-gpu"),
                *("--remote-debugging-pipe", f"--user-data-dir={profile}"),
                *("--window-size=900,800", "about:blank"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place_pipes,
            close_fds=False,
        )
        os.close(to_browser)
        os.close(from_browser)
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self._call(
            "Target.attachToTarget", targetId=page, flatten=True
        )["sessionId"]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.terminate()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def open(self, url):
        """Go to a page."""
        self._call("Page.navigate", url=url)

    def evaluate(self, expression):
        """Return the value of an expression of JavaScript, or of its promise."""
        found = self._call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self):
        """Return a picture of the page, as PNG."""
        found = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def _call(self, method, **params):
        self._n_sent += 1
        message = {"id": self._n_sent, "method": method, "params": params}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:  # what has no such id tells of an event
            answer = self._next()
            if answer.get("id") == self._n_sent:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self):
        while b"\0" not in self._buffer:
            received = os.read(self._read, 2**16)
            assert received, "Chromium ended"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
