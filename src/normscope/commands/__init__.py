"""Commands with a module of their own, registered in `normscope.cli`."""
