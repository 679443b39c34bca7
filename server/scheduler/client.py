"""The client of a sequence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """A client, who shares the server with others. Clients of one name are the same."""

    name: str = ""
    weight: float = 1.0  # a client of weight 2 is due twice what one of weight 1 is; more than 0
    cache_group: str = ""  # shares cached prefixes with clients of the same group only; empty: the common group


EVERYBODY = Client()  # where clients are not distinguished
