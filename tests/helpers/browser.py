"""Headless Chromium controlled over its DevTools protocol, as far as the browser tests need it."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_START_S = 60
# Renders WebGL on the processor.
_WEBGL = [
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist",
]
# Runs WebGPU on the processor.
_WEBGPU = [
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
]
_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)
_LIMIT_S = 180
# Keys that act by their number in fields.
_KEY_CODES = {"ArrowUp": 38, "ArrowDown": 40}
HEADLESS = (
    "--headless=new",
    # Safe because all pages are our own; the sandbox cannot start as root or in a container.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
)


def find_chromium() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def print_to_pdf(page: Path) -> Path:
    """Print the page to a PDF next to it, without network access."""
    target, browser = page.with_suffix(".pdf"), find_chromium()
    assert browser is not None
    with tempfile.TemporaryDirectory() as profile:
        places = (f"--user-data-dir={profile}", f"--print-to-pdf={target}")
        command = [
            browser,
            *HEADLESS,
            "--no-pdf-header-footer",
            *places,
            page.resolve().as_uri(),
        ]
        subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True)
    return target


def assert_fits_desk_and_phone(chromium: str, page: Path) -> None:
    """Assert that nothing overflows the window in either theme, and nothing else is requested."""
    browser = Browser(chromium)
    try:
        for scheme in ("light", "dark"):
            browser.emulate(color_scheme=scheme)
            for width in (1440, 390):
                browser.resize(width)
                browser.open(page)
                widest = browser.evaluate("document.documentElement.scrollWidth")
                assert widest <= width, (scheme, width)
        assert not browser.problems
        asked = {url for url in browser.requests if not url.startswith("data:")}
        assert asked == {page.as_uri()}
    finally:
        browser.close()


class Browser:
    """One page in one browser, with a record of its console problems and network requests."""

    def __init__(
        self, executable: str, *, webgl: bool = False, webgpu: bool = False
    ) -> None:
        flags = list(HEADLESS)
        if webgl:
            flags.remove("--disable-gpu")
            flags += _WEBGL
        if webgpu:
            flags += _WEBGPU
        self._profile = Path(tempfile.mkdtemp(prefix="trinat-browser-"))
        self._process = subprocess.Popen(
            [
                executable,
                *flags,
                "--remote-debugging-port=0",
                "--window-size=1300,900",
                f"--user-data-dir={self._profile}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._loop = asyncio.new_event_loop()
        self._next = 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._run(self._connect())

    def open(self, page: Path | str) -> None:
        self._send(
            "Page.navigate", url=page if isinstance(page, str) else page.as_uri()
        )
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; promises are awaited."""
        answer = self._send(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition: str, limit_s: float = 60) -> None:
        end = time.monotonic() + limit_s
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"never true: {condition}; {self.problems}"
            time.sleep(0.05)

    def choose(self, field: str, *files: Path) -> None:
        """Choose files in the file input with this selector."""
        root = self._send("DOM.getDocument")["root"]["nodeId"]
        node = self._send("DOM.querySelector", nodeId=root, selector=field)["nodeId"]
        names = [str(file.resolve()) for file in files]
        self._send("DOM.setFileInputFiles", nodeId=node, files=names)

    def save_to(self, folder: Path) -> None:
        """Save downloads of the page in a folder."""
        place = str(folder.resolve())
        self._send("Browser.setDownloadBehavior", behavior="allow", downloadPath=place)

    def emulate(self, *, media: str = "", color_scheme: str = "") -> None:
        """Emulate a medium, such as print, or a preferred colour scheme."""
        feature = {"name": "prefers-color-scheme", "value": color_scheme}
        self._send("Emulation.setEmulatedMedia", media=media, features=[feature])

    def resize(self, width: int, height: int = 900) -> None:
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def press(self, key: str, code: str = "", *, shift: bool = False) -> None:
        """Press the key that gives `key`, such as "n", "1", "!" or "ArrowDown".

        `code` is the key's place on the keyboard, such as "Digit1"; by default that of a letter.
        """
        if not code:
            code = key if len(key) > 1 else f"Key{key.upper()}"
        facts: dict[str, Any] = {"key": key, "code": code}
        if len(key) == 1:
            facts["text"] = key
        facts["windowsVirtualKeyCode"] = _KEY_CODES.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            self._send(
                "Input.dispatchKeyEvent", type=kind, modifiers=8 * shift, **facts
            )

    def click(self, x: float, y: float) -> None:
        """Click the primary mouse button at a position in the window."""
        self.drag((x, y))

    def hold(self, x: float, y: float, until: str) -> None:
        """Hold the mouse button at a position until a JavaScript condition is true."""
        self._mouse("mousePressed", x, y)
        self.wait(until)
        self._mouse("mouseReleased", x, y)

    def drag(self, *points: tuple[float, float]) -> None:
        """Drag the mouse with the button held from the first point to the last, in pixels."""
        (x, y), *others = points
        self._mouse("mousePressed", x, y)
        for x, y in others:
            self._mouse("mouseMoved", x, y)
        self._mouse("mouseReleased", x, y)

    def _mouse(self, kind: str, x: float, y: float) -> None:
        held = int(kind != "mouseReleased")
        self._send(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x,
            y=y,
            button="left",
            buttons=held,
            clickCount=1,
        )

    def touch(self, *points: tuple[float, float]) -> None:
        """Drag a finger from the first point to the last, in pixels."""
        self._send("Emulation.setTouchEmulationEnabled", enabled=True)
        for number, (x, y) in enumerate(points):
            kind = "touchMove" if number else "touchStart"
            finger = {"x": x, "y": y}
            self._send("Input.dispatchTouchEvent", type=kind, touchPoints=[finger])
        self._send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def picture(self) -> bytes:
        """Return a screenshot of the page as PNG."""
        return base64.b64decode(
            self._send("Page.captureScreenshot", format="png")["data"]
        )

    def close(self) -> None:
        self._run(self._leave())
        self._process.terminate()
        self._process.wait(timeout=30)
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    async def _leave(self) -> None:
        self._socket.close()

    async def _connect(self) -> None:
        from tornado.httpclient import AsyncHTTPClient
        from tornado.websocket import websocket_connect

        port_file = self._profile / "DevToolsActivePort"
        end = time.monotonic() + _START_S
        while not port_file.is_file() or len(port_file.read_text().splitlines()) < 2:
            assert time.monotonic() < end, "the browser did not start"
            await asyncio.sleep(0.05)
        port = port_file.read_text().splitlines()[0]
        client = AsyncHTTPClient()
        answer = await client.fetch(
            f"http://127.0.0.1:{port}/json", request_timeout=_START_S
        )
        client.close()
        page = next(t for t in json.loads(answer.body) if t["type"] == "page")
        self._socket = await websocket_connect(
            page["webSocketDebuggerUrl"], max_message_size=2**28
        )
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._ask(f"{domain}.enable", {})

    def _send(self, method: str, **parameters: Any) -> Any:
        return self._run(self._ask(method, parameters))

    async def _ask(self, method: str, parameters: dict[str, Any]) -> Any:
        self._next += 1
        number = self._next
        await self._socket.write_message(
            json.dumps({"id": number, "method": method, "params": parameters})
        )
        while True:
            text = await asyncio.wait_for(self._socket.read_message(), 120)
            assert text is not None, "the browser has gone"
            message = json.loads(text)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        facts = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(str(facts["exceptionDetails"]))
            case "Log.entryAdded" if facts["entry"]["level"] in ("warning", "error"):
                self.problems.append(
                    " ".join((facts["entry"]["text"], facts["entry"].get("url", "")))
                )
            case "Runtime.consoleAPICalled" if facts["type"] in ("warning", "error"):
                self.problems.append(str(facts["args"]))
            case "Network.requestWillBeSent":
                self.requests.append(facts["request"]["url"])
