"""Generate lightning_jax/_proto from protos/, or check that the committed stubs are what the generator gives.

The generator is pinned to grpcio-tools 1.71.2: its code (protobuf 5.29) imports under protobuf 5.29 to 7.x, so agents'
environments that hold an older protobuf can still import the client. Run it in an environment of its own:

    pip install grpcio-tools==1.71.2
    python scripts/gen_protos.py            # rewrite lightning_jax/_proto
    python scripts/gen_protos.py --check    # exit 1 where the committed stubs differ
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
import tempfile
from pathlib import Path

GENERATOR = "1.71.2"
ROOT = Path(__file__).resolve().parents[1]
PROTOS = ROOT / "protos"
TARGET = ROOT / "lightning_jax" / "_proto"
# PyPI's "lightning" owns that top-level name, so the stubs live below our own package.
_IMPORT = re.compile(r"^(from|import) lightning\.v1", re.MULTILINE)


def generate(target: Path) -> None:
    """Write the stubs of every proto below ``target`` (which becomes the root of the generated packages)."""
    import grpc_tools
    from grpc_tools import protoc

    found = importlib.metadata.version("grpcio-tools")
    if found != GENERATOR:
        raise SystemExit(
            f"grpcio-tools is {found}, the stubs are made with {GENERATOR}: pip install grpcio-tools=={GENERATOR}"
        )
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    bundled = Path(str(grpc_tools.__file__)).parent / "_proto"
    outputs = [f"--python_out={target}", f"--pyi_out={target}", f"--grpc_python_out={target}"]
    status = protoc.main(["protoc", f"-I{PROTOS}", f"-I{bundled}", *outputs, *sources])
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")
    for path in target.rglob("*.py*"):
        path.write_text(_IMPORT.sub(r"\1 lightning_jax._proto.lightning.v1", path.read_text()))
    for folder in (target, target / "lightning", target / "lightning" / "v1"):
        (folder / "__init__.py").write_text("")


def differences(fresh: Path, committed: Path) -> list[str]:
    """Names of the files that differ, are missing or are left over."""

    def contents(root: Path) -> dict[str, str]:
        files = (path for path in root.rglob("*") if path.suffix in (".py", ".pyi"))
        return {str(path.relative_to(root)): path.read_text() for path in files}

    new, old = contents(fresh), contents(committed)
    return sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit 1 on a difference")
    if not parser.parse_args().check:
        TARGET.mkdir(parents=True, exist_ok=True)
        generate(TARGET)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        drift = differences(Path(folder), TARGET)
    for name in drift:
        sys.stderr.write(f"differs from what protos/ generate: lightning_jax/_proto/{name}\n")
    return 1 if drift else 0


if __name__ == "__main__":
    sys.exit(main())
