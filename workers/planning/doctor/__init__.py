"""Checks of a host before it serves: settings of firmware, kernel, cgroup and unit, and measured rates."""
