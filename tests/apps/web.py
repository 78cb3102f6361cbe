"""A web process that shares a quota with the fleet: uvicorn and starlette, one AsyncLimiter, on one core."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.records import Recorder
from celery_ratelimit import AsyncLimiter, Limit

limiter = AsyncLimiter.from_url(os.environ["TEST_BROKER"], quotas={"shared": Limit(os.environ["TEST_RATE"])})
os.makedirs(f"{os.environ['TEST_RECORDS']}/permits", exist_ok=True)
permits = Recorder(f"{os.environ['TEST_RECORDS']}/permits")


async def charge(request: Request) -> JSONResponse:
    """Waits for its turn, behind the tasks that wait, and notes when its permit was good by the store's clock."""
    async with limiter.permit("shared", max_wait=60) as decision:
        permits.note(int(request.path_params["index"]), decision._granted_at / 1e6, 0)
    return JSONResponse({"granted_at": decision._granted_at})


async def ready(_: Request) -> JSONResponse:
    await limiter.ping()
    return JSONResponse({})


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with limiter:
        yield


app = Starlette(
    routes=[Route("/charge/{index:int}", charge), Route("/ready", ready)],
    lifespan=lifespan,
)

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["TEST_PORT"]), log_level="warning", ws="none")
