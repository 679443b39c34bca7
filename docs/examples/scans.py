"""Make a folder of pages as a scanner would: receipts, a little turned and noisy."""

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

RECEIPTS = (
    ("Lindgren Bicycles", "2026-03-02", (("Inner tube", "6.50"), ("Patch kit", "3.90"), ("Labour", "25.00"))),
    ("Alves Bakery", "2026-03-09", (("Rye bread", "4.20"), ("Coffee", "2.80"))),
    ("Mori Stationery", "2026-03-11", (("Notebook", "5.75"),)),
)
PAPER, INK, LINE = 245, 25, 52  # grey levels, and pixels between two lines


def scanned(shop: str, date: str, items: tuple[tuple[str, str], ...]) -> Image.Image:
    """Return a page with a receipt."""
    total = f"{sum(float(price) for _, price in items):.2f}"
    page = Image.new("L", (700, 900), PAPER)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(32)
    for number, (left, right) in enumerate([(shop, ""), (date, ""), ("", ""), *items, ("TOTAL", total)]):
        draw.text((80, 90 + number * LINE), left, INK, font)
        draw.text((620, 90 + number * LINE), right, INK, font, anchor="ra")
    turned = page.rotate(1.5, Image.Resampling.BICUBIC, fillcolor=PAPER)
    return Image.blend(turned, Image.effect_noise(page.size, 50), 0.1)


folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
for number, receipt in enumerate(RECEIPTS, 1):
    scanned(*receipt).save(folder / f"page-{number}.png")
