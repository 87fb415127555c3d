"""A harness of verifiers in the worker's own process: one chat loop, with the task's tools over MCP. Its own harnesses
start a Python through `uv` for each segment of an episode."""

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatHarness"]


class ChatConfig(HarnessConfig):  # type: ignore[misc]
    """Has no settings of its own."""


class ChatHarness(Harness[ChatConfig]):  # type: ignore[misc]
    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = SUPPORTS_MCP = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,  # noqa: ARG002
        runtime: Any,  # noqa: ARG002
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: Any,
    ) -> Any:
        """A segment: until a turn that calls no tool."""
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            client = await stack.enter_async_context(
                httpx.AsyncClient(timeout=None, trust_env=False, verify=False)
            )
            request: dict[str, Any] = {"model": ctx.model, "messages": _opening(self, data)}
            if tools:
                request["tools"] = tools
            while True:
                headers = {"Authorization": f"Bearer {secret}"}
                reply = await client.post(f"{endpoint}/chat/completions", headers=headers, json=request)
                if reply.status_code != 200:
                    return ProgramResult(exit_code=1, stdout="", stderr=reply.text[:1000])
                message = reply.json()["choices"][0]["message"]
                request["messages"].append(message)
                if not message.get("tool_calls"):
                    return ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message["tool_calls"]:
                    name, text = call["function"]["name"], call["function"]["arguments"]
                    if name in dispatch:
                        content = await call_mcp(connections, dispatch, name, json.loads(text))
                    else:
                        content = f"error: there is no tool {name!r}; tools: {', '.join(dispatch)}"
                    request["messages"].append(
                        {"role": "tool", "tool_call_id": call["id"], "content": content}
                    )


def _opening(harness: ChatHarness, data: Any) -> list[dict[str, Any]]:
    system, prompt = harness.resolve_prompt(data)
    messages = [{"role": "system", "content": system}] if system else []
    if isinstance(prompt, str):
        return [*messages, {"role": "user", "content": prompt}]
    return [*messages, *map(message_to_wire, prompt or [])]
