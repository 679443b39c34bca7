"""Input other than text, which no served model accepts, and the messages that refuse it.

Each surface has its own form of errors; the words are the same for all.
"""

from collections.abc import Mapping

# By the type of a part, or by the field of an object, that carries the input on any surface.
MEDIA: Mapping[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image", "image_embeds"), "images"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "videos"),
    **dict.fromkeys(("file", "file_url", "input_file", "container_upload"), "files"),
}


def takes_no(kind: str) -> str:
    """Return the message for input of this `kind`, such as "images"."""
    return f"this model does not accept {kind}, only text; leave this out or describe the content in text"


def refuse_media(value: object) -> None:
    """Raise `ValueError` for an object with a field that carries other input than text."""
    if isinstance(value, dict):
        for name, kind in MEDIA.items():
            if value.get(name) is not None:
                raise ValueError(takes_no(kind))


def text_of(value: object) -> object:
    """Return the text of an object with a field `text`, and any other value as it is. Raises `ValueError` for an object
    with other input than text."""
    refuse_media(value)
    return value["text"] if isinstance(value, dict) and isinstance(value.get("text"), str) else value
