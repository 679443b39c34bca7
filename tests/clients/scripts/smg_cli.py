"""smg before two servers."""

from router_checks import check_router

check_router(
    ["smg", "launch"], {policy: ["--policy", policy] for policy in ("round_robin", "cache_aware", "power_of_two")}
)
