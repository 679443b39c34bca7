# Writes the commit of the checkout SOURCE to the file OUT, or "unknown" where there is none. Nothing else goes in, neither a
# time nor a path, so that two builds of a commit are the same to the byte.
#
# The checkout is asked only if SOURCE is its root: an unpacked source distribution may lie inside someone else's checkout.
# The environment variable NUMASERVE_COMMIT names the commit of a build that has no checkout.
set(_commit "$ENV{NUMASERVE_COMMIT}")
if(_commit STREQUAL "" AND EXISTS "${SOURCE}/.git")
  # --exclude: a tag would take the place of the id. --abbrev: the length of an abbreviation depends on the clone.
  execute_process(COMMAND git describe --always --dirty --abbrev=40 --exclude=*
                  WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE _commit OUTPUT_STRIP_TRAILING_WHITESPACE
                  ERROR_QUIET RESULT_VARIABLE _status)
  if(NOT _status EQUAL 0)
    set(_commit "")
  endif()
endif()
if(NOT _commit MATCHES "^[0-9A-Za-z._-]+$")
  set(_commit "unknown")
endif()
file(WRITE "${OUT}" "${_commit}\n")
