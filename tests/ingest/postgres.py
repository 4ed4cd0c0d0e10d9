"""A real PostgreSQL server for tests, from whatever binaries are installed (Debian: apt-get install postgresql)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import OperationalError

from tests.ingest.processes import free_port


def binaries() -> Path | None:
    """The folder with initdb and postgres; None where there is none."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


class PostgresServer:
    """Started on construction over a fresh cluster; fsync is off, since no test cuts the power."""

    def __init__(self, folder: Path) -> None:
        self._binaries = folder
        self._port = free_port()
        self._data = Path(tempfile.mkdtemp(prefix="ljx-postgres-"))
        # PostgreSQL refuses to run as root, which tests in a container often are.
        self._user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(self._data, "postgres", "postgres")
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "test", "--no-sync", "-E", "UTF8")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://test@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = ["-p", str(self._port), "-k", "", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        self._process = subprocess.Popen(
            [str(self._binaries / "postgres"), "-D", str(self._data), *options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **self._user,
        )  # fmt: skip
        engine = create_engine(self.url)
        for _ in range(200):
            try:
                engine.connect().close()
                break
            except OperationalError:
                time.sleep(0.05)
        else:
            raise RuntimeError("PostgreSQL did not start")
        engine.dispose()

    def stop(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """End it: SIGQUIT at once, as a crash would."""
        self._process.send_signal(number)
        self._process.wait(30)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._data, ignore_errors=True)

    def fresh(self, name: str) -> str:
        """URL of an empty schema of its own."""
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {name}")
            connection.exec_driver_sql(f"CREATE ROLE {name} SUPERUSER LOGIN")
            connection.exec_driver_sql(f"ALTER ROLE {name} SET search_path = {name}")
        engine.dispose()
        return make_url(self.url).set(username=name).render_as_string()

    def _run(self, program: str, *words: str) -> None:
        subprocess.run([str(self._binaries / program), *words], check=True, capture_output=True, cwd="/", **self._user)
