"""import-linter's contract against circles compares the parts of a package with each other, not with the package."""

import grimp

ROOTS = [f"numaserve.{each}" for each in ("server", "workers", "kernels", "shm_comm", "configs")]


def test_no_package_imports_a_part_of_itself_that_needs_the_package() -> None:
    graph = grimp.build_graph(*ROOTS, exclude_type_checking_imports=False, cache_dir=None)
    circles = [
        (*there, *back[1:])
        for package in graph.modules
        for part in graph.find_descendants(package)
        if (there := graph.find_shortest_chain(package, part)) and (back := graph.find_shortest_chain(part, package))
    ]
    assert circles == []
