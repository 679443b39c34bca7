"""The reserve of steps with images."""

import random

from numaserve.server.scheduler.overrun import Overrun


def test_few_steps_exceed_the_factor_and_it_falls_when_they_take_their_time() -> None:
    rng, overrun = random.Random(0), Overrun()
    exceeded = 0
    for _ in range(3000):
        seconds = rng.gauss(1.0, 0.03) if rng.random() < 0.9 else rng.uniform(1.2, 1.5)
        exceeded += seconds > overrun.factor
        overrun.observe(1.0, seconds)
    assert exceeded < 0.06 * 3000
    assert 1.2 < overrun.factor < 1.5
    for _ in range(1000):
        overrun.observe(1.0, 1.0)
    assert overrun.factor < 1.12


def test_one_step_that_hangs_does_not_starve_images() -> None:
    overrun = Overrun()
    overrun.observe(0.1, 60.0)
    assert overrun.factor < 1.5
