"""Program of test_mesh: one engine on one device, others on meshes of eight, and what each samples."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from lightning_jax.model.sharding import DEFAULT_RULES, make_mesh, named
from lightning_jax.model.transformer import init_params, parameters
from lightning_jax.serve.engine import Engine
from tests.serve.conftest import ENGINE, MODEL, requests

WIDE = replace(MODEL, num_heads=8, num_kv_heads=4)
CONFIG = replace(ENGINE, prefix_cache_bytes=1 << 20)


def weights(seed: int):
    return jax.tree.map(lambda x: x * 6.0 if x.ndim > 2 else x, init_params(WIDE, jax.random.key(seed)))


def on_learners_mesh(params):
    """As a learner holds them: on an Explicit mesh that is not the engine's."""
    mesh = make_mesh(data=1, fsdp=4, tensor=2)
    return jax.tree.map(lambda x, i: jax.device_put(x, named(mesh, DEFAULT_RULES, i.axes)), params, parameters(WIDE))


def sampled(data: int, tensor: int):
    engine = Engine(WIDE, replace(CONFIG, data_devices=data, tensor_devices=tensor), (256,))
    engine.start(weights(0))
    try:
        before = [g.result(300) for g in [engine.submit(r) for r in requests(16)]]
        engine.publish(weights(1) if data * tensor == 1 else on_learners_mesh(weights(1)), 1)
        after = [g.result(300) for g in [engine.submit(r) for r in requests(16)]]
        layer = engine._device._params["layers"][0]["q"]
        cache = engine._device._state["keys"][0][0]
        assert layer.addressable_shards[0].data.shape[0] == WIDE.num_kv_heads // tensor
        assert cache.addressable_shards[0].data.shape[:2] == (CONFIG.slots // data, WIDE.num_kv_heads // tensor)
        assert engine.metrics()["prefix_tokens_copied_total"] > 0
    finally:
        engine.stop()
    return before + after


def main() -> None:
    assert jax.device_count() == 8
    one, worst = sampled(1, 1), 0.0
    for data, tensor in ((2, 4), (8, 1)):
        other = sampled(data, tensor)
        for a, b in zip(one, other, strict=True):
            assert a.response_ids.tolist() == b.response_ids.tolist()
            assert (a.finish_reason, a.policy_version) == (b.finish_reason, b.policy_version)
            worst = max(worst, float(np.max(np.abs(a.rollout_logps - b.rollout_logps))))
    assert worst < 2e-4, worst  # float32, sums of parts in another order
    print(f"EQUAL, log-probs within {worst:.1e}")


if __name__ == "__main__":
    main()
