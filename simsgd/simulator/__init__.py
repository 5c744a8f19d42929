"""One step of W workers, from batch to parameters."""
