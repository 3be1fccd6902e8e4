"""Calls of the official MCP client of Python, over HTTP and over standard input and output, in both lives of the
protocol. Arguments: URL, key, program."""

import asyncio
import base64
import json
import sys
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import ImageContent

url, key, program = sys.argv[1:]


def over_http(key: str) -> Any:
    client = create_mcp_http_client(headers={"Authorization": f"Bearer {key}"})
    return streamable_http_client(url + "/mcp", http_client=client)


def server(kind: str) -> Any:
    if kind == "stdio":
        return StdioServerParameters(command=program, args=["mcp"], env={"TINTYPE_URL": url, "TINTYPE_KEY": key})
    return over_http(key)


async def call(kind: str, mode: str) -> dict[str, Any]:
    async with Client(server(kind), mode=mode) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        # The brush strokes make large files, and this client takes no message of more than 1 MiB.
        boats = {"prompt": "a sailing ship on a mountain lake, impressionist", "n": 4}
        made = await client.call_tool("generate_image", boats)
        task = json.loads(made.content[0].text)
        images = [part.data for part in made.content if isinstance(part, ImageContent)]
        again = await client.call_tool("get_task", {"task_id": task["task_id"], "images": "none"})
        refused = await client.call_tool("generate_image", {"prompt": "a boat", "n": 9})
        return {
            "version": client.protocol_version,
            "tools": len(tools),
            "images": [base64.b64decode(image)[:3].hex() for image in images],
            "bytes": sum(map(len, images)),
            "same": json.loads(again.content[0].text) == task,
            "refused": [refused.is_error, refused.content[0].text],
        }


async def refusal() -> str:
    """What a caller with a wrong key hears."""
    try:
        async with Client(over_http("wrong"), mode="auto") as client:
            await client.list_tools()
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return str(error)
    return "nothing"


seen = [asyncio.run(call(kind, mode)) for kind in ("http", "stdio") for mode in ("legacy", "auto")]
print(json.dumps({"calls": seen, "refusal": asyncio.run(refusal())}))
