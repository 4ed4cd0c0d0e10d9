"""The policy server's log of requests: a JSON object a line, in a file that is rotated. No bodies, no keys."""

from __future__ import annotations

import json
import logging
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

FILE_NAME = "lightning_server.log"
MAX_BYTES = 32 * 1024 * 1024
KEPT = 3  # older files beside the current one


class RequestLog:
    """Appends to `folder/lightning_server.log`. OSError where that cannot be written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE_NAME
        self._handler = RotatingFileHandler(self.path, maxBytes=MAX_BYTES, backupCount=KEPT, encoding="utf-8")

    def write(self, event: str, **fields: Any) -> None:
        """One line: time (seconds since 1970), event, and the fields that are not None."""
        line = {"time": round(time.time(), 6), "event": event, **{k: v for k, v in fields.items() if v is not None}}
        text = json.dumps(line, ensure_ascii=False, default=str)
        # The handler alone, no logger: neither levels nor other handlers of the process are to touch these lines.
        self._handler.handle(logging.LogRecord("lightning_server", logging.INFO, "", 0, text, None, None))

    def close(self) -> None:
        """Flush and close."""
        self._handler.close()
