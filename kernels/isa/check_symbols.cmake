# Fails when OBJECT, the code of one instruction set, defines a weak or unique symbol: the linker keeps one copy of
# such a symbol for the whole module, and the portable set could end up with a copy compiled for AVX-512. NM is the nm
# to ask. DW.ref.* are addresses that exception tables refer to, not code. Local symbols are left out: none is weak, and
# a sanitizer adds 20,000 of them, 45 MB of text that took the expression ten minutes.
execute_process(COMMAND "${NM}" -C -g --defined-only "${OBJECT}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" shared "${symbols}")
list(FILTER shared EXCLUDE REGEX " DW\\.ref\\.")
if(shared)
  list(JOIN shared "\n" shared)
  message(FATAL_ERROR "${OBJECT} shares code with other instruction sets; move it into the anonymous namespace:\n${shared}")
endif()
