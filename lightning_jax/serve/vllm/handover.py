"""How a vLLM server takes new weights from a directory in Hugging Face's layout.

reload: the workers read the directory in place (`/collective_rpc`, method reload_weights with weights_path).
sleep: the same between a deep sleep and waking up, so that old and new weights never lie in memory side by side; the
    server needs --enable-sleep-mode.
disk: through the weight-transfer calls; the server needs --weight-transfer-config '{"backend": "disk"}', newer vLLM.

All of them are calls that vLLM has only with VLLM_SERVER_DEV_MODE=1 (vLLM's documentation: Sleep Mode; Weight
Transfer). At the end the prefix cache is emptied, which holds keys and values of the old weights. Nobody samples
meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_jax.serve.vllm.server import VllmError, VllmServer

METHODS = ("reload", "sleep", "disk")
Step = tuple[str, Mapping[str, Any] | None]  # path and body of a POST


def steps(method: str, directory: str, version: int, timeout_s: float) -> Sequence[Step]:
    """The calls, in their order."""
    reload = {"method": "reload_weights", "kwargs": {"weights_path": directory}, "timeout": timeout_s}
    if method == "reload":
        return [("/collective_rpc", reload), ("/reset_prefix_cache", None)]
    if method == "sleep":
        return [
            ("/sleep?level=2", None),
            ("/wake_up?tags=weights", None),
            ("/collective_rpc", reload),
            ("/wake_up?tags=kv_cache", None),
            ("/reset_prefix_cache", None),
        ]
    return [
        ("/init_weight_transfer_engine", {"init_info": {}}),
        ("/start_weight_update", None),
        ("/update_weights", {"update_info": {"path": directory}}),
        ("/finish_weight_update", {"weight_version": str(version)}),
        ("/reset_prefix_cache", None),
    ]


def hand_over(server: VllmServer, method: str, directory: str, version: int, timeout_s: float) -> None:
    """Make the server sample from the weights in `directory`; VllmError names the step that failed and the mend.

    After an error nobody knows what the server samples from.
    """
    for path, body in steps(method, directory, version, timeout_s):
        try:
            told = server.call("POST", path, body, timeout_s)
        except VllmError as error:
            mend = " Start vLLM with VLLM_SERVER_DEV_MODE=1: the call is missing." if error.status == 404 else ""
            raise VllmError(f"handing over version {version} by {method}: {error}.{mend}", error.status) from error
        if isinstance(told, Mapping) and told.get("success") is False:
            raise VllmError(f"handing over version {version} by {method}: {path} answered {dict(told)}")
