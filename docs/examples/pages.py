"""Turn a folder of scanned receipts into JSON: a line for each page, and every line matches a schema."""

import base64
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

URL = os.environ.get("NUMASERVE_URL", "http://127.0.0.1:8000")
PRICE = r"^[0-9]{1,5}\.[0-9]{2}$"
AT_ONCE = 4  # pages that the server has at the same time


class Item(BaseModel):
    """An item of a receipt and its price."""

    model_config = ConfigDict(extra="forbid")  # the schema then allows no other fields

    name: str = Field(max_length=30)
    price: str = Field(pattern=PRICE)


class Receipt(BaseModel):
    """A receipt."""

    model_config = ConfigDict(extra="forbid")

    shop: str = Field(max_length=40)
    date: str = Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")
    items: list[Item] = Field(max_length=10)
    total: str = Field(pattern=PRICE)


def receipt_of(page: Path) -> Receipt:
    """Return the receipt on a page."""
    data = base64.b64encode(page.read_bytes()).decode()
    answer = client.chat.completions.parse(
        model=model,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
                    {"type": "text", "text": "Copy the receipt on this page."},
                ],
            }
        ],
        response_format=Receipt,
        temperature=0,
    )
    return answer.choices[0].message.parsed


client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("NUMASERVE_KEY", "none"))
model = client.models.list().data[0].id
pages = sorted(Path(sys.argv[1]).glob("*.png"))
with ThreadPoolExecutor(AT_ONCE) as threads:
    for page, receipt in zip(pages, threads.map(receipt_of, pages), strict=True):
        print(json.dumps({"page": page.name, **receipt.model_dump()}))
