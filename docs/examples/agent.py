"""Let a model answer a question about a store with two tools."""

import json
import os

from openai import OpenAI

STOCK = {"wrench": 12, "hammer": 0, "screwdriver": 31}
PRICES = {"wrench": 9.5, "hammer": 14.0, "screwdriver": 4.25}


def count(item: str) -> str:
    """Return the number of pieces in stock."""
    return f"{STOCK[item]} in stock"


def price(item: str) -> str:
    """Return the price of one piece."""
    return f"{PRICES[item]:.2f} euros"


FUNCTIONS = {"count": count, "price": price}
PARAMETERS = {
    "type": "object",
    "properties": {"item": {"type": "string", "enum": list(STOCK)}},
    "required": ["item"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": function.__doc__, "parameters": PARAMETERS}}
    for name, function in FUNCTIONS.items()
]
MAX_ROUNDS = 4


def run(client: OpenAI, model: str, question: str) -> str:
    """Call tools until the model answers in words, at most `MAX_ROUNDS` times."""
    messages = [{"role": "user", "content": question}]
    for turn in range(MAX_ROUNDS):
        message = (
            client.chat.completions.create(
                model=model,
                messages=messages,
                tools=TOOLS,
                tool_choice="required" if turn == 0 else "auto",
                parallel_tool_calls=False,
                temperature=0,
                max_tokens=200,
            )
            .choices[0]
            .message
        )
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            print(f"{call.function.name}({call.function.arguments}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "The model called tools in every round."


if __name__ == "__main__":
    url = os.environ.get("NUMASERVE_URL", "http://127.0.0.1:8000")
    server = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("NUMASERVE_KEY", "none"))
    print(run(server, server.models.list().data[0].id, "How many wrenches are in stock?"))
