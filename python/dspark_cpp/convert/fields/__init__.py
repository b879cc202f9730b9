"""Reading one aspect of a checkpoint each; a schema chooses among these and adds what is its own."""
