"""Where model code runs: one operating-system process an invocation, forked from a clean, preloaded zygote."""
