"""All checks, in the order in which they run."""

from tests.vm.guest.failures import (
    a_killed_front_end_is_started_again,
    a_killed_worker_is_a_pause,
    reloading_keeps_the_process,
    stopping_drains,
    the_watchdog_ends_what_hangs,
)
from tests.vm.guest.installation import a_reboot_brings_it_back, installed, ready, removal_leaves_nothing
from tests.vm.guest.placement import (
    allowed_cpus_are_kept,
    cpu_quota_is_kept,
    memory_is_local,
    memory_max_is_kept,
    threads_stay_on_their_node,
)
from tests.vm.guest.several_models import two_models_have_a_node_each
from tests.vm.guest.surroundings import a_socket_starts_the_service, prometheus_scrapes

# The others need what these make: they always run, and where one fails none follows.
NEEDED = (installed, ready)
CHECKS = (
    *NEEDED,
    threads_stay_on_their_node,
    memory_is_local,
    prometheus_scrapes,
    a_killed_worker_is_a_pause,
    a_killed_front_end_is_started_again,
    reloading_keeps_the_process,
    stopping_drains,
    allowed_cpus_are_kept,
    memory_max_is_kept,
    cpu_quota_is_kept,
    the_watchdog_ends_what_hangs,
    two_models_have_a_node_each,
    a_socket_starts_the_service,
    a_reboot_brings_it_back,
    removal_leaves_nothing,
)
