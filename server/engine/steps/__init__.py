"""The step loop: plans in flight, their deadlines and their times."""
