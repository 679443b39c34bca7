"""What bodies of all surfaces have of tools."""

from typing import Annotated, Any

from numaserve.server.api.fields import conflict
from pydantic import StringConstraints

MAX_TOOLS = 256
# OpenAI's and Anthropic's rule, and the dots, slashes and colons that names of MCP servers bring.
ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


def tool_data(
    name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None
) -> dict[str, Any]:
    """The data of a `Tool`: a long body is checked in another process."""
    return {"name": name, "description": description or "", "parameters": parameters, "strict": strict is True}


def distinct(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools as data, no two of which have the same name. Raises `PydanticCustomError`."""
    names = {tool["name"] for tool in tools}
    if len(names) != len(tools):
        raise conflict("name", "two tools have the same name")
    return tools
