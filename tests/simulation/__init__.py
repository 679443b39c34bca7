"""A simulation of engine, scheduler, supervisor and step loop: one seed decides everything that happens in a run.

The parts are the product's. What surrounds them is simulated: time, the group of workers, what matchers take, clients.
"""
