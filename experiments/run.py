"""Runs studies: `python -m experiments.run +exp=spider`, with Hydra's overrides and multirun. See --help."""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from experiments.schema import RunConfig, register
from lightning_jax.presets import presets_root

log = logging.getLogger(__name__)

CONF = presets_root()
ALLOW = "allow_changed_config"  # of a resumed run: go on although the configuration differs from the checkpoint's
COMPARED = ("task", "agent", "model", "algo", "credit", "reward")  # groups whose choice names an arm of a comparison
FAILED: list[str] = []  # folders of failed jobs of a sweep, for the exit status


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def job(config: DictConfig) -> None:
    """One run; in a sweep, a failed run is recorded and the next one starts."""
    from lightning_jax.run.experiment import run_experiment, show_results  # jax only once the configuration holds

    folder = Path(HydraConfig.get().runtime.output_dir)
    chosen = HydraConfig.get().runtime.choices
    plain = {**_plain(config), "choices": {group: str(chosen[group]) for group in COMPARED if group in chosen}}
    OmegaConf.save(OmegaConf.create(plain), folder / "config.yaml")
    try:
        summary = run_experiment(plain, folder, admin_key=_admin_key())
    except Exception:
        if HydraConfig.get().mode is not RunMode.MULTIRUN:
            raise
        log.exception("run in %s failed; the sweep goes on", folder)
        FAILED.append(str(folder))
        return
    show_results(summary, folder)
    print(folder)


def resume(folder: Path, overrides: list[str]) -> None:
    """Go on with the run in `folder`, by its own saved configuration plus overrides."""
    from lightning_jax.run.experiment import run_experiment, show_results

    saved = folder / "config.yaml"
    if not saved.exists():
        raise ValueError(f"+resume={folder}: no config.yaml there; name the folder of a run")
    config = OmegaConf.load(saved)
    OmegaConf.set_struct(config, True)
    allow, kept = changes_allowed(overrides)
    kept = [o for o in kept if not o.startswith("+exp=")]
    config = OmegaConf.merge(config, OmegaConf.from_dotlist(kept))
    plain = _plain(config)
    summary = run_experiment(plain, folder, resume=True, allow_changed_config=allow, admin_key=_admin_key())
    OmegaConf.save(OmegaConf.create(plain), saved)
    show_results(summary, folder)
    print(folder)


def changes_allowed(words: list[str]) -> tuple[bool, list[str]]:
    """Whether `allow_changed_config=true` is among the words, and the others. ValueError for another value of it."""
    allowed, others = False, []
    for word in words:
        name, _, value = word.partition("=")
        if name.lstrip("+") != ALLOW:
            others.append(word)
        elif value.lower() in ("true", "false"):
            allowed = value.lower() == "true"
        else:
            raise ValueError(f"{word!r} says neither yes nor no: write {ALLOW}=true or {ALLOW}=false")
    return allowed, others


def main() -> int:
    """The command line."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here, so that they can teach
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    register()
    overrides = sys.argv[1:]
    wanted = [o.split("=", 1)[1] for o in overrides if re.match(r"\+?resume=", o)]
    try:
        if wanted:
            resume(Path(wanted[0].strip("'\"")), [o for o in overrides if not re.match(r"\+?resume=", o)])
        else:
            job()
    except (HydraException, OmegaConfBaseException) as error:
        print(f"configuration error: {_teach(error)}", file=sys.stderr)
        return 2
    except ValueError as error:
        if os.environ.get("LIGHTNING_JAX_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    if FAILED:
        print(f"{len(FAILED)} runs failed: " + ", ".join(FAILED), file=sys.stderr)
    return 1 if FAILED else 0


def _admin_key() -> str | None:
    """The key of the policy server, this run's or the one it connects to: no configuration, or files would hold it."""
    return os.environ.get("LJX_API_KEY") or None


def _plain(config: Any) -> dict[str, Any]:
    """The run's own sections as plain data, everything resolved."""
    with open_dict(config):
        config.pop("sweep", None)
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


def _teach(error: Exception) -> str:
    """The message of a configuration error and, for a mistyped key, the nearest one."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    lines = dict.fromkeys(line.rstrip() for e in chain for line in str(e).splitlines() if line.strip())
    text = "\n".join(
        line for line in lines if not re.match(r"\s*(reference_type|object_type|provider)=|Config search", line)
    )
    match = re.search(r"full_key: ([\w.]+)", text)
    if match:
        near = difflib.get_close_matches(match[1], _known_keys(), n=1, cutoff=0.4)
        text += f"\ndid you mean {near[0]!r}?" if near else ""
    return text


def _known_keys() -> list[str]:
    """Dotted names of everything that can be set: the schema's and those of the options of each group."""
    known: list[str] = []

    def walk(prefix: str, node: Any) -> None:
        for name, value in node.items_ex(resolve=False) if isinstance(node, DictConfig) else ():
            known.append(f"{prefix}{name}")
            walk(f"{prefix}{name}.", value)

    schema = OmegaConf.structured(RunConfig)
    walk("", schema)
    for group in schema:
        for option in sorted((CONF / str(group)).glob("*.yaml")):
            walk(f"{group}.", OmegaConf.load(option))
    return known


if __name__ == "__main__":
    sys.exit(main())
