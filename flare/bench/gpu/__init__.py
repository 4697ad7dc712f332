"""One visit to a GPU machine: everything that is measured and tested there, in one command with one result."""
