"""RewardService: rewards from agents (with their attempt's token), tools or judges (as admins)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import reward_pb2 as pb
from lightning_jax.ingest import convert
from lightning_jax.ingest.auth import Authenticator, Caller
from lightning_jax.ingest.intake import Intake
from lightning_jax.ingest.status import answered
from lightning_jax.ingest.store import Store


class RewardService:
    """Records rewards."""

    def __init__(self, store: Store, authenticator: Authenticator, intake: Intake) -> None:
        self._store, self._intake = store, intake
        self._authenticator = authenticator

    async def RecordRewards(self, request: pb.RecordRewardsRequest, context: Any) -> pb.RecordRewardsResponse:
        """Store rewards, all or none."""
        async with answered(context):
            batch = [convert.reward_of(message) for message in request.rewards]
            caller = await self._authenticator.found(context.invocation_metadata() or ())
            foreign = None if caller is None else _foreign(batch, caller)
            if caller is None or foreign is not None:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, foreign or "no valid bearer token")
            batch = [_placed(reward, caller) for reward in batch]
            with self._intake.place(request, context):
                added = await asyncio.wrap_future(self._store.record_rewards(batch))
        return pb.RecordRewardsResponse(added=added)


def _foreign(batch: list[types.Reward], caller: Caller) -> str | None:
    """Why the caller may not write these rewards, or None."""
    if caller.grant is None:
        return None
    own = (caller.grant.rollout.rollout_id, caller.grant.attempt_id)
    for reward in batch:
        if (reward.rollout_id or own[0], reward.attempt_id or own[1]) != own:
            return (
                f"the token of attempt {own[1]!r} may not report reward {reward.reward_id!r} for rollout "
                f"{reward.rollout_id!r} attempt {reward.attempt_id!r}"
            )
    return None


def _placed(reward: types.Reward, caller: Caller | None) -> types.Reward:
    """The reward with the identity that the token carries."""
    if caller is None or caller.grant is None:
        return reward
    return replace(reward, rollout_id=caller.grant.rollout.rollout_id, attempt_id=caller.grant.attempt_id)
